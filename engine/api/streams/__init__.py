"""Streams, and what can be done with each kind."""
