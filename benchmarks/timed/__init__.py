"""Sliding and session windows, joins and top 3, beside Flink SQL and Spark Structured Streaming."""
