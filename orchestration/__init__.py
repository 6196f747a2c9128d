"""Weir in Dagster: one factory makes the assets, checks, jobs, schedules and sensor of a job from its `StreamSpec`."""

import sys
from importlib.util import find_spec

if find_spec("dagster") is None:
    raise ModuleNotFoundError(
        f"Weir's package `orchestration` needs Dagster, which is not installed for {sys.executable}: "
        "pip install 'weir[dagster]'",
        name="dagster",
    )
