"""Dagster for streams: assets, checks, schedules and sensors of every job, made by one factory from its `StreamSpec`."""
