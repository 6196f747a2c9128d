"""`build_stream_definitions` makes all Dagster definitions of one streaming job."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import dagster as dg

from orchestration.alerts import alerts_sensor
from orchestration.audits import audit_asset, audit_job, audit_schedule
from orchestration.collecting import gc_job
from orchestration.drills import audit_checks, drill_asset, drill_job, drill_schedule, drilled_check
from orchestration.gold import gold_asset, gold_automation, gold_job
from orchestration.lineage import lineage_of, source_specs, table_specs
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
    lineage = lineage_of(spec)
    assets: list[Any] = [stream_asset(spec, lineage), savepoint_asset(spec), *_external(spec)]
    assets += [*source_specs(spec, lineage), *table_specs(spec, lineage)]
    checks: list[dg.AssetChecksDefinition] = [health_check(spec), rehearsal_check(spec)]
    jobs: list[Any] = [start, checkpoint, savepoint, rescale]
    jobs += [make(spec) for make in (cancel_job, stop_job, delete_job, upgrade_job, gc_job)]
    schedules = [rescale_schedule(spec, at, rescale) for at in spec.rescale]
    sensors = [watch_sensor(spec, start, lineage.outputs), alerts_sensor(spec)]
    if spec.audit_cron is not None:
        audit = audit_job(spec)
        assets.append(audit_asset(spec, lineage))
        jobs.append(audit)
        schedules.append(audit_schedule(spec, audit))
    if spec.savepoint_cron is not None:
        schedules.append(savepoint_schedule(spec, savepoint))
    if spec.autoscale is not None:
        sensors.append(autoscale_sensor(spec, rescale))
    if spec.checkpoint_cron is not None:
        schedules.append(checkpoint_schedule(spec, checkpoint))
    if spec.gold is not None:
        assets.append(gold_asset(spec))
        jobs.append(gold_job(spec))
        sensors.append(gold_automation(spec))
    if spec.drill is not None:
        drill = drill_job(spec)
        assets.append(drill_asset(spec))
        checks += [audit_checks(spec), drilled_check(spec)]
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
            description=f"One materialization for each minute in which {spec.job} completed checkpoints.",
            group_name="checkpoints",
            tags=spec.tags,
            owners=list(spec.owners),
            kinds={"arrow"},
            freshness_policy=dg.FreshnessPolicy.time_window(fail_window=timedelta(seconds=spec.checkpoints_within_s)),
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
            spec.restarts_key,
            deps=[spec.stream_key],
            description=f"The restarts of {spec.job}, with their causes and the time until records flowed again.",
            group_name="restarts",
            tags=spec.tags,
            owners=list(spec.owners),
        ),
    ]
