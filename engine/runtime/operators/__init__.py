"""The operators of a chain."""
