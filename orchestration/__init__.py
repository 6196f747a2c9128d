"""Weir in Dagster: one factory makes the assets, checks, jobs, schedules and sensor of a job from its `StreamSpec`."""
