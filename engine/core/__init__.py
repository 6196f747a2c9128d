"""Shared by all rooms: errors, durations, event time, tags, ports, paths, functions, state types, sources, sinks."""
