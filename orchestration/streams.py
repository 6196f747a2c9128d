"""The asset `streams/<job>`: materializing it ensures that a detached JobMaster runs. Jobs to cancel and checkpoint it.

A never-ending job is not a never-ending run: the JobMaster and its supervisor outlive the run, the daemon and the
webserver. A sensor watches them (`watch.py`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import dagster as dg
import msgspec
from pydantic import Field

from engine.cli.resuming import resume_by_command
from engine.core.errors import NotRunning, WeirError
from engine.host.launch import LaunchOptions, MasterLaunch
from engine.jobmaster.actions import Outcome
from engine.observe.client import JobClient
from engine.process.from_savepoint import begin_from
from engine.process.submit import FromSnapshot, choose_snapshot, plan_launch, start_detached
from engine.protocol.scaling import Scaling
from engine.protocol.upgrading import Phase
from engine.store.opening import address_of
from orchestration.facts import Seen, gather, status_of
from orchestration.health import Health, State, look
from orchestration.incidents import present
from orchestration.lineage import Lineage, source_keys
from orchestration.reporting import own_checkpoint
from orchestration.resources import STORE, WeirStore, readable_errors
from orchestration.spark_config import SparkConfig
from orchestration.spec import StreamSpec

BY = "dagster"
HEALTHY = "healthy"
START_TIMEOUT_S = 180.0
CHECKPOINT_TIMEOUT_S = 120.0
CANCEL_TIMEOUT_S = 60.0


class StreamConfig(SparkConfig):
    """How `streams/<job>` is started. Without any setting it starts as its spec says, from its last epoch."""

    path: str | None = Field(
        default=None,
        description="import path of the version to run, with `params` only (default: the version that the job was "
        "upgraded to, else as its spec says, with the parameters of that)",
    )
    parallelism: int | None = Field(
        default=None, description="parallelism of operators that set none themselves (default: as the job's spec says)"
    )
    rescaled_parallelism: int | None = Field(
        default=None, description="parallelism that a rescale decided; it goes before the job's own and `parallelism`"
    )
    rescaled_operators: dict[str, int] = Field(
        default={}, description="parallelism of single operators, by uid, that rescales decided"
    )
    params: dict[str, str] = Field(default={}, description="parameters of the job; they override those of its spec")
    store: str | None = Field(default=None, description="directory or s3://bucket/prefix (default: as last time)")
    from_snapshot: FromSnapshot = Field(
        default=FromSnapshot.LAST,
        description="LAST: go on from the last epoch. REWIND: go on from the newest intact epoch; tables hide the rows "
        "of later epochs. ALLOW_REPLAY: go on from the newest intact epoch; the rows of later epochs stay and are "
        "written again",
    )

    from_savepoint: str | None = Field(
        default=None,
        description="begin from a savepoint: its folder, or JOB/NAME; only for a job that has no epoch of its own yet",
    )
    claim: bool = Field(
        default=False,
        description="with from_savepoint: the job owns the savepoint and deletes it when it is no longer needed",
    )
    allow_non_restored_state: bool = Field(
        default=False, description="drop state, positions and tables of operators that the job no longer has"
    )
    as_last_time: bool = Field(
        default=False,
        description="start the job exactly as the last time, with the code of that start, or carry on its upgrade, as "
        "`weir resume` does; only a job that should be running. The sensor sets it",
    )

    @classmethod
    def of(cls, launch: MasterLaunch) -> "StreamConfig":
        """Returns the config that starts a job again with its last version, parameters, parallelism and store.

        Spark's options are left out, since Dagster shows the config of runs: `as_last_time` repeats them, too.
        """
        return cls(
            path=launch.path,
            parallelism=launch.parallelism,
            rescaled_parallelism=launch.scaling.parallelism,
            rescaled_operators=launch.scaling.operators,
            params=launch.params,
            store=launch.store,
        )

    def over(self, options: LaunchOptions) -> LaunchOptions:
        """Returns the options of a job's spec, changed by what this config says."""
        return msgspec.structs.replace(
            self.spark_over(options),
            path=self.path or options.path,
            params=self.params if self.path else {**options.params, **self.params},
            parallelism=self.parallelism or options.parallelism,
            scaling=Scaling(self.rescaled_parallelism, self.rescaled_operators),
            allow_non_restored_state=self.allow_non_restored_state,
        )


@dataclass(frozen=True)
class Ensured:
    client: JobClient
    said: str


def ensure_running(spec: StreamSpec, store: str, config: StreamConfig) -> Ensured:
    """Starts the job unless it runs or a supervisor is starting it.

    Raises an error if it runs with other settings: only a user may stop it.
    """
    client = JobClient(store, spec.job)
    if client.alive() or client.looked_after() is not None:
        _same_as_asked(client, config)
        return Ensured(client, _wait(client) or "the job was running already: nothing to do")
    if config.as_last_time:
        return Ensured(client, _resumed(client))
    launch = plan_launch(config.over(current_options(spec, client)), store)
    went_back = _begin(launch, config)
    client = start_detached(launch, BY)
    started = _wait(client) or "started"
    return Ensured(client, f"{started}; {went_back}" if went_back else started)


def _resumed(client: JobClient) -> str:
    """Does what `weir resume` does.

    A plain start would run the job's files as they are now, and leave an interrupted upgrade without a way back.
    """
    code, said = resume_by_command(client.name, client.store)
    if code:
        raise WeirError(said.strip())
    return _wait(client) or said.strip()


def current_options(spec: StreamSpec, client: JobClient) -> LaunchOptions:
    """Returns the options of the spec, or those of the version that the last upgrade has put in its place.

    The state belongs to that version. A spec that still names the old one must not bring it back by a plain start.
    """
    upgrade, last = client.folder.read_upgrade(), client.folder.read_launch()
    upgraded = upgrade is not None and upgrade.progress.phase is Phase.UPGRADED
    if not upgraded or upgrade is None or last is None or last.path != upgrade.new.path or last.path == spec.path:
        return spec.options
    return msgspec.structs.replace(spec.options, path=last.path, params=last.params, parallelism=last.parallelism)


def _begin(launch: MasterLaunch, config: StreamConfig) -> str:
    """Makes the chosen state the one that the job goes on from, and returns what a user should know about it."""
    if config.from_savepoint is None:
        return choose_snapshot(launch, config.from_snapshot)
    if config.from_snapshot is not FromSnapshot.LAST:
        raise WeirError("choose one of from_savepoint and from_snapshot")
    return begin_from(launch, config.from_savepoint, claim=config.claim)


def _wait(client: JobClient) -> str:
    """Waits until the job runs. Returns what it is doing if it is still starting; Spark may write its inputs for hours.

    Raises an error if it ended, or if nobody starts it.
    """
    try:
        ended = client.wait_until_running(START_TIMEOUT_S)
    except WeirError:
        doing = client.looked_after()
        if doing is None:
            raise
        return f"it is still starting: {doing}"
    if ended is not None and ended.outcome is not Outcome.FINISHED:
        raised = f"\n{ended.raised.traceback}" if ended.raised is not None else ""
        raise WeirError(
            f"job {client.name!r} {ended.outcome}: {ended.reason}. Its log is {client.folder.log_file}{raised}"
        )
    return ""


def _same_as_asked(client: JobClient, config: StreamConfig) -> None:
    running = client.folder.read_launch()
    if running is None:
        return
    differs = [
        f"{name} is {running.params.get(name)!r}" for name, v in config.params.items() if running.params.get(name) != v
    ]
    if config.path not in (None, running.path):
        differs.append(f"its version is {running.path}")
    if config.parallelism is not None and config.parallelism != running.parallelism:
        differs.append(f"its parallelism is {running.parallelism or 'its own'}")
    for asked, found, what in (
        (config.master, running.spark_master, "Spark's master"),
        (config.slot_memory_mb, running.slot_memory_mb, "slot_memory_mb"),
        (config.max_slots, running.max_slots, "max_slots"),
    ):
        if asked is not None and asked != found:
            differs.append(f"{what} is {found or 'not set'}")
    differs += [f"{name} has another value" for name, v in config.conf.items() if running.conf.get(name) != v]
    if config.from_snapshot is not FromSnapshot.LAST:
        differs.append("it went on from its last epoch")
    if differs:
        raise WeirError(
            f"job {client.name!r} is running already, with other settings: {'; '.join(differs)}. Cancel it first "
            f"({client.name}_cancel), then materialize it again"
        )


def stream_asset(spec: StreamSpec, lineage: Lineage) -> dg.AssetsDefinition:
    unknown = {"lineage": f"not known: {lineage.unknown}"} if lineage.unknown else {}

    @dg.asset(
        key=spec.stream_key,
        deps=source_keys(spec, lineage),
        description=f"{spec.description}\n\nMaterialize this asset to ensure that the job runs; it runs on by itself.",
        group_name="streams",
        tags=spec.tags,
        owners=list(spec.owners),
        kinds={"spark", "arrow"},
        pool=spec.pool,
        metadata={"job": spec.path, **unknown},
    )
    def stream(context: dg.AssetExecutionContext, config: StreamConfig, weir: WeirStore) -> dg.MaterializeResult[None]:
        store = address_of(config.store) if config.store else weir.of(context.instance, spec)
        started = time.monotonic()
        with readable_errors():
            ensured = ensure_running(spec, store, config)
            metadata = describe(ensured.client)
        context.log.info(f"{spec.job}: {ensured.said}")
        return dg.MaterializeResult(
            metadata={
                STORE: store,
                "outcome": ensured.said,
                "seconds": round(time.monotonic() - started, 1),
                "log": dg.MetadataValue.path(str(ensured.client.folder.log_file)),
                **metadata,
            }
        )

    return stream


def describe(client: JobClient) -> dict[str, Any]:
    try:
        status = client.status()
    except NotRunning as error:
        return {"state": str(error)}  # a bounded job may have finished meanwhile
    return {
        "state": status.phase.value,
        "generation": status.generation,
        "epoch": status.epoch,
        "parallelism": status.parallelism,
        "guarantee": status.guarantee,
    }


def health_check(spec: StreamSpec) -> dg.AssetChecksDefinition:
    """Returns the check of the job's health. The sensor reports it, too; a user may execute it by hand."""

    @dg.asset_check(
        asset=spec.stream_key,
        name=HEALTHY,
        description="the job runs, or its supervisor is starting it; it completes checkpoints in time, restarts "
        "seldom, its watermark moves, and its store has room",
    )
    def healthy(context: dg.AssetCheckExecutionContext, weir: WeirStore) -> dg.AssetCheckResult:
        client = weir.client(context.instance, spec)
        health = look(client.folder, spec.silent_after_s)
        if health.state in (State.UNKNOWN, State.STOPPED):
            return judged(health, ())
        status, now_ms = status_of(client, health), time.time_ns() // 1_000_000
        seen = Seen().after(health, status, now_ms)
        up_ms = status.uptime_ms if status is not None and status.uptime_ms is not None else 0
        return judged(health, list(present(gather(client, health, seen), spec.alerts, now_ms - up_ms, now_ms)))

    return healthy


def judged(health: Health, wrong: Sequence[tuple[str, str]]) -> dg.AssetCheckResult:
    """Returns the result of the check: green only if the processes live and nothing else is wrong."""
    found = [f"{kind}: {text}" for kind, text in wrong]
    return dg.AssetCheckResult(
        passed=health.healthy and not found,
        severity=dg.AssetCheckSeverity.ERROR if found else severity(health),
        description="\n".join([health.detail, *found]),
        metadata=health_metadata(health),
    )


def severity(health: Health) -> dg.AssetCheckSeverity:
    passing = health.state in (State.RECOVERING, State.UNKNOWN)
    return dg.AssetCheckSeverity.WARN if passing else dg.AssetCheckSeverity.ERROR


def health_metadata(health: Health) -> dict[str, Any]:
    age = {} if health.heartbeat_age_s is None else {"heartbeat_age_s": round(health.heartbeat_age_s, 1)}
    return {"state": health.state.value, **age}


def start_job(spec: StreamSpec) -> Any:
    return dg.define_asset_job(
        f"{spec.job}_start",
        selection=[spec.stream_key],
        description=f"Ensure that {spec.job} is running.",
    )


def cancel_job(spec: StreamSpec) -> dg.JobDefinition:
    @dg.op(name=f"cancel_{spec.job}", pool=spec.pool)
    def cancel(context: dg.OpExecutionContext, weir: WeirStore) -> None:
        client = weir.client(context.instance, spec)
        with readable_errors():
            try:
                client.cancel(BY)
            except NotRunning as error:
                context.log.info(f"nothing to cancel: {error}")
                return
            client.wait_until_ended(CANCEL_TIMEOUT_S)
        context.log.info(f"{spec.job} is cancelled; the next start goes on from its last epoch")

    @dg.job(
        name=f"{spec.job}_cancel",
        description=f"Cancel {spec.job}. The next start goes on from its last epoch.",
    )
    def cancel_stream() -> None:
        cancel()

    return cancel_stream


def checkpoint_job(spec: StreamSpec) -> dg.JobDefinition:
    @dg.op(name=f"checkpoint_{spec.job}", pool=spec.pool)
    def checkpoint(context: dg.OpExecutionContext, weir: WeirStore) -> None:
        client = weir.client(context.instance, spec)
        with readable_errors():
            made = client.wait_for_checkpoint(client.trigger_checkpoint(), CHECKPOINT_TIMEOUT_S)
        context.log.info(f"checkpoint {made.checkpoint} is epoch {made.epoch}, {made.duration_ms:.0f} ms")
        if made.epoch is not None and (event := own_checkpoint(context.instance, spec, client, made.epoch)):
            context.log_event(event)

    @dg.job(
        name=f"{spec.job}_checkpoint",
        description=f"Trigger a checkpoint of {spec.job} now, and wait until its epoch is published and committed.",
    )
    def checkpoint_stream() -> None:
        checkpoint()

    return checkpoint_stream


def skip_unless_running(
    context: dg.ScheduleEvaluationContext, spec: StreamSpec, weir: WeirStore
) -> dg.SkipReason | None:
    """Says why a schedule has nothing to do: the job does not run now. None if it runs."""
    health = look(weir.client(context.instance, spec).folder, spec.silent_after_s)
    return None if health.state is State.RUNNING else dg.SkipReason(f"{spec.job} is not running: {health.detail}")


def checkpoint_schedule(spec: StreamSpec, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    assert spec.checkpoint_cron is not None

    @dg.schedule(
        name=f"{spec.job}_checkpoints",
        cron_schedule=spec.checkpoint_cron,
        job=job,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Triggers checkpoints of {spec.job} while it runs.",
    )
    def checkpoints(context: dg.ScheduleEvaluationContext, weir: WeirStore) -> dg.RunRequest | dg.SkipReason:
        return skip_unless_running(context, spec, weir) or dg.RunRequest()

    return checkpoints
