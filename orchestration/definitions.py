"""All of Weir in Dagster: what the factory makes of each job's spec, and what the jobs share."""

import dagster as dg

from assets.pageviews.asset import PAGEVIEWS
from orchestration.factory import build_stream_definitions
from orchestration.resources import resources

SPECS = (PAGEVIEWS,)

defs = dg.Definitions.merge(
    *(build_stream_definitions(spec) for spec in SPECS),
    # Every step in the run's own process: no second Python, and no second JVM.
    dg.Definitions(resources=resources(), executor=dg.in_process_executor),
)
