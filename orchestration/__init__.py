"""Dagster for streams: assets, checks, schedules and sensors of a job, made by one factory from its `StreamSpec`."""
