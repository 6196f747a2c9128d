"""StreamGraph to JobGraph to ExecutionGraph."""
