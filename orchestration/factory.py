"""`build_stream_definitions` makes all Dagster definitions of one streaming job."""

from __future__ import annotations

from typing import Any

import dagster as dg

from orchestration.alerts import alerts_sensor
from orchestration.collecting import gc_job
from orchestration.drills import audit_checks, drill_asset, drill_job, drill_schedule
from orchestration.gold import gold_asset, gold_job
from orchestration.rescaling import autoscale_sensor, rescale_job, rescale_schedule
from orchestration.savepoints import delete_job, savepoint_asset, savepoint_job, savepoint_schedule, stop_job
from orchestration.spec import StreamSpec
from orchestration.streams import (
    cancel_job,
    checkpoint_job,
    checkpoint_schedule,
    health_check,
    start_job,
    stream_asset,
)
from orchestration.upgrades import rehearsal_check, upgrade_job
from orchestration.watch import watch_sensor


def build_stream_definitions(spec: StreamSpec) -> dg.Definitions:
    start, checkpoint, savepoint, rescale = (
        make(spec) for make in (start_job, checkpoint_job, savepoint_job, rescale_job)
    )
    assets: list[Any] = [stream_asset(spec), savepoint_asset(spec), *_external(spec)]
    checks: list[dg.AssetChecksDefinition] = [health_check(spec), rehearsal_check(spec)]
    jobs: list[Any] = [start, checkpoint, savepoint, rescale]
    jobs += [make(spec) for make in (cancel_job, stop_job, delete_job, upgrade_job, gc_job)]
    schedules = [rescale_schedule(spec, at, rescale) for at in spec.rescale]
    sensors = [watch_sensor(spec, start), alerts_sensor(spec)]
    if spec.savepoint_cron is not None:
        schedules.append(savepoint_schedule(spec, savepoint))
    if spec.autoscale is not None:
        sensors.append(autoscale_sensor(spec, rescale))
    if spec.checkpoint_cron is not None:
        schedules.append(checkpoint_schedule(spec, checkpoint))
    if spec.gold is not None:
        assets.append(gold_asset(spec))
        jobs.append(gold_job(spec))
    if spec.drill is not None:
        drill = drill_job(spec)
        assets.append(drill_asset(spec))
        checks.append(audit_checks(spec))
        jobs.append(drill)
        if spec.drill_cron is not None:
            schedules.append(drill_schedule(spec, drill))
    return dg.Definitions(assets=assets, asset_checks=checks, jobs=jobs, schedules=schedules, sensors=sensors)


def _external(spec: StreamSpec) -> list[dg.AssetSpec]:
    """Returns the assets that nobody materializes in the UI: the sensor, or a run of the upgrade, reports them."""
    return [
        dg.AssetSpec(
            spec.checkpoints_key,
            deps=[spec.stream_key],
            description=f"One materialization for each completed checkpoint of {spec.job}.",
            group_name="checkpoints",
            tags=spec.tags,
            owners=list(spec.owners),
            kinds={"arrow"},
        ),
        dg.AssetSpec(
            spec.rehearsals_key,
            deps=[spec.stream_key],
            description=f"One materialization for each rehearsal of an upgrade of {spec.job}, by {spec.job}_upgrade.",
            group_name="rehearsals",
            tags=spec.tags,
            owners=list(spec.owners),
            kinds={"spark", "great_expectations"},
        ),
        dg.AssetSpec(
            spec.sinks_key,
            deps=[spec.stream_key],
            description=f"What readers see of {spec.job}: rows, watermark, lag.",
            group_name="sinks",
            tags=spec.tags,
            owners=list(spec.owners),
            kinds={"parquet"},
        ),
    ]
