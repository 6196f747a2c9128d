"""Columnar state of windows: partial aggregates per pane."""
