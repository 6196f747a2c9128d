"""Snapshots in the store: the epoch log, state files, upload, restore, retention and rewind."""
