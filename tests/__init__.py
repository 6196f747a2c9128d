"""Weir's tests: one folder per package, plus simulation, cluster and browser."""
