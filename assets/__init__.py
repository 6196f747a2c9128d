"""Streaming jobs, one folder each."""
