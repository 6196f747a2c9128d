"""Chaos: a real job on real Spark, while every process and the store of it are broken at random. See `run.py`."""
