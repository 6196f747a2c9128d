"""All Dagster definitions of Weir: those that the factory makes of each job in `assets/`, and the shared resources."""

import dagster as dg

from orchestration.discovery import find_streams
from orchestration.factory import build_stream_definitions
from orchestration.resources import resources

SPECS = find_streams()

defs = dg.Definitions.merge(
    *(build_stream_definitions(spec) for spec in SPECS),
    # Each step runs in the run's own process: a second process would start a second JVM.
    dg.Definitions(resources=resources(), executor=dg.in_process_executor),
)
