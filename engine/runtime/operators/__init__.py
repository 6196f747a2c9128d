"""The operators of a chain, one concept a file."""
