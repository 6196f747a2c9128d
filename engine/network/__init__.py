"""Channels and control streams over Arrow Flight."""
