"""State of windows: partial aggregates per pane."""
