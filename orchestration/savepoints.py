"""The asset `savepoints/<job>`: materializing it takes a savepoint of the running job. Jobs that delete one, and that
stop the stream.

Savepoints of the schedule have names that begin with `SCHEDULED`. When there are more of them than the spec keeps, the
oldest are deleted. All others are a user's: `weir savepoint delete`, REST or `<job>_delete_savepoint` deletes them.
"""

import datetime as dt
from collections.abc import Callable
from typing import Any

import dagster as dg
from pydantic import Field

from engine.core.errors import NotRunning, WeirError
from engine.observe.client import JobClient
from engine.observe.savepoints import SavepointRecord, SavepointState
from engine.process.from_savepoint import delete_savepoint
from orchestration.resources import WeirStore, readable_errors
from orchestration.spec import StreamSpec
from orchestration.streams import skip_unless_running

SCHEDULED = "scheduled-"
SAVEPOINT_TIMEOUT_S = 3600.0
STOP_TIMEOUT_S = 3600.0


class SavepointConfig(dg.Config):
    """Where the savepoint goes."""

    name: str | None = Field(default=None, description="name of the savepoint (default: by date and time)")
    to: str | None = Field(
        default=None, description="folder or s3:// address for it (default: as the spec says, else in the job's store)"
    )


class DeleteConfig(dg.Config):
    """The savepoint that is no longer needed."""

    savepoint: str = Field(description="name of the savepoint, JOB/NAME, or its folder or s3:// address")


class StopConfig(SavepointConfig):
    """How the job is stopped."""

    savepoint: bool = Field(default=True, description="make the last epoch a savepoint, too")
    drain: bool = Field(
        default=False,
        description="end the sources as if all were read: windows and timers fire, and the job can't go on from there",
    )


def savepoint_asset(spec: StreamSpec) -> dg.AssetsDefinition:
    @dg.asset(
        key=spec.savepoints_key,
        deps=[spec.stream_key],
        description=f"Materialize this asset to take a savepoint of {spec.job}, which runs on. A job of another name, "
        "or in another store, can begin from it.",
        group_name="savepoints",
        tags=spec.tags,
        owners=list(spec.owners),
        kinds={"arrow"},
        pool=spec.pool,
    )
    def savepoint(
        context: dg.AssetExecutionContext, config: SavepointConfig, weir: WeirStore
    ) -> dg.MaterializeResult[None]:
        client = weir.client(context.instance, spec)
        with readable_errors():
            name = client.savepoint(config.name, config.to or spec.savepoints_to)
            made = client.wait_for_savepoint(name, SAVEPOINT_TIMEOUT_S)
            gone = thin_out(spec, client, context.log.info)
        return dg.MaterializeResult(metadata={**savepoint_figures(made), "deleted": gone})

    return savepoint


def savepoint_figures(made: SavepointRecord) -> dict[str, Any]:
    """Returns the savepoint's metadata. Dagster plots numbers, so the epoch is given as text."""
    duration_ms = None if made.duration_ms is None else round(made.duration_ms, 1)
    known = {"bytes": made.bytes, "duration_ms": duration_ms}
    return {
        "savepoint": made.savepoint,
        "place": dg.MetadataValue.path(made.place),
        "epoch": dg.MetadataValue.text(str(made.epoch)),
        **{name: value for name, value in known.items() if value is not None},
    }


def thin_out(spec: StreamSpec, client: JobClient, say: Callable[[str], None]) -> int:
    """Deletes the oldest savepoints of the schedule, as many as there are too many. Returns how many it has deleted.

    One that can't be deleted now is tried again after the next savepoint.
    """
    held = [
        record
        for record in client.savepoints()
        if record.state is SavepointState.COMPLETED and record.savepoint.startswith(SCHEDULED)
    ]
    gone = 0
    for record in held[spec.savepoints_kept :]:
        try:
            delete_savepoint(client.store, record.place)
        except WeirError as error:
            say(f"{record.place} could not be deleted: {error}")
            continue
        gone += 1
        say(f"deleted {record.place}: {spec.savepoints_kept} savepoints of the schedule are kept")
    return gone


def savepoint_job(spec: StreamSpec) -> Any:
    return dg.define_asset_job(
        f"{spec.job}_savepoint",
        selection=[spec.savepoints_key],
        description=f"Take a savepoint of {spec.job}, which runs on.",
    )


def savepoint_schedule(spec: StreamSpec, job: Any) -> dg.ScheduleDefinition:
    assert spec.savepoint_cron is not None

    @dg.schedule(
        name=f"{spec.job}_savepoints",
        cron_schedule=spec.savepoint_cron,
        job=job,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Takes savepoints of {spec.job} while it runs, and keeps the last {spec.savepoints_kept}.",
    )
    def savepoints(context: dg.ScheduleEvaluationContext, weir: WeirStore) -> dg.RunRequest | dg.SkipReason:
        if (skipped := skip_unless_running(context, spec, weir)) is not None:
            return skipped
        at = (context.scheduled_execution_time or dt.datetime.now(dt.UTC)).astimezone(dt.UTC)
        config = SavepointConfig(name=f"{SCHEDULED}{at:%Y%m%d-%H%M%S}")
        return dg.RunRequest(run_config=dg.RunConfig(ops={spec.savepoints_key.to_python_identifier(): config}))

    return savepoints


def _to(spec: StreamSpec, config: StopConfig) -> str | None:
    return config.to or (spec.savepoints_to if config.savepoint else None)


def stop_job(spec: StreamSpec) -> dg.JobDefinition:
    @dg.op(name=f"stop_{spec.job}", pool=spec.pool)
    def stop(context: dg.OpExecutionContext, config: StopConfig, weir: WeirStore) -> None:
        client = weir.client(context.instance, spec)
        with readable_errors():
            try:
                name = client.stop(
                    config.drain,
                    config.savepoint,
                    config.name,
                    _to(spec, config),
                )
            except NotRunning as error:
                context.log.info(f"nothing to stop: {error}")
                return
            ended = client.wait_until_stopped(STOP_TIMEOUT_S)
            context.log.info(f"{spec.job} has ended: {ended.reason}")
            made = client.savepoint_of_stop(name, ended) if name is not None else None
        if made is not None:
            context.log_event(dg.AssetMaterialization(spec.savepoints_key, metadata=savepoint_figures(made)))

    @dg.job(
        name=f"{spec.job}_stop",
        description=f"Stop {spec.job} behind a last epoch, and make a savepoint of it. If that fails, the job goes on.",
    )
    def stop_stream() -> None:
        stop()

    return stop_stream


def delete_job(spec: StreamSpec) -> dg.JobDefinition:
    @dg.op(name=f"delete_savepoint_{spec.job}", pool=spec.pool)
    def delete(context: dg.OpExecutionContext, config: DeleteConfig, weir: WeirStore) -> None:
        client = weir.client(context.instance, spec)
        with readable_errors():
            place, head = delete_savepoint(client.store, _place(client, config.savepoint))
        context.log.info(f"deleted {place}: savepoint {head.name} of {head.job}, {head.state_bytes} bytes")
        context.add_output_metadata({"place": dg.MetadataValue.path(place), "bytes": head.state_bytes})

    @dg.job(
        name=f"{spec.job}_delete_savepoint",
        description=f"Delete a savepoint of {spec.job}, whether or not the job runs. Nothing brings it back.",
    )
    def delete_savepoint_of_stream() -> None:
        delete()

    return delete_savepoint_of_stream


def _place(client: JobClient, wanted: str) -> str:
    """Returns where the job's savepoint of this name is. Other texts are an address already."""
    if "/" in wanted:
        return wanted
    there = (one for one in client.savepoints() if one.state is SavepointState.COMPLETED)
    return next((one.place for one in there if one.savepoint == wanted), f"{client.name}/{wanted}")
