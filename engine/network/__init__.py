"""Data channels and control streams over Arrow Flight."""
