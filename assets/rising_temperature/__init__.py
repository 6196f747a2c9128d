"""Sensors whose temperature rises for a second: a pattern whose conditions look at the partial match."""
