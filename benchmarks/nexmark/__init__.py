"""Nexmark: an online auction's events, eleven queries over them, and the same queries in Flink SQL."""
