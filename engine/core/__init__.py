"""What every room shares: errors, durations, event time, tags, ports, paths, functions, state types, sources, sinks."""
