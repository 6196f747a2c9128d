"""Runs slots on Spark: sessions, Java, packaging, slots as Spark tasks."""
