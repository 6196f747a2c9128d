"""The three graphs of a job: StreamGraph, JobGraph and ExecutionGraph."""
