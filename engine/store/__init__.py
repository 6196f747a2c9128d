"""Where snapshots, the epoch log and tables live."""
