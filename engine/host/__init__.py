"""Gives a process the parts of its machine: clock, threads, the run folder, rotated files."""
