"""Spark: sessions, Java, packaging, slots as tasks."""
