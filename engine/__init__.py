"""Weir's runtime: exactly-once stateful streaming on Spark tasks and Arrow batches."""
