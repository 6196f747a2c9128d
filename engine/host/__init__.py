"""This machine: clock, threads, the run folder, files that rotate."""
