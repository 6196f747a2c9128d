"""Stores, which keep snapshots, the epoch log and tables."""
