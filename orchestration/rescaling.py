"""Jobs that rescale a stream: by hand, at fixed times of the day, and by an autoscaler that is off until turned on."""

import time
from typing import Any

import dagster as dg
from pydantic import Field

from engine.core.errors import NotRunning, WeirError
from engine.jobmaster.status import JobStatus
from engine.observe.client import JobClient
from engine.observe.rescales import RescaleRecord, RescaleState
from engine.protocol.autoscale import Load, wanted_parallelism
from orchestration.resources import WeirStore, readable_errors
from orchestration.spec import RescaleAt, StreamSpec
from orchestration.streams import skip_unless_running

RESCALE_TIMEOUT_S = 300.0
LOOK_EVERY_S = 30


class RescaleConfig(dg.Config):
    """The parallelism that the job shall have."""

    parallelism: int | None = Field(
        default=None, ge=1, description="parallelism of all operators that set none in code; empty: leave it"
    )
    operators: dict[str, int] = Field(default={}, description="parallelism of single operators, by uid")


def rescale_job(spec: StreamSpec) -> dg.JobDefinition:
    @dg.op(name=f"rescale_{spec.job}", pool=spec.pool)
    def rescale(context: dg.OpExecutionContext, config: RescaleConfig, weir: WeirStore) -> None:
        client = weir.client(context.instance, spec)
        with readable_errors():
            done = rescale_and_wait(client, config, context.log.info)
        if done is not None:
            context.log_event(_observation(spec, done))

    @dg.job(
        name=f"{spec.job}_rescale",
        description=f"Give {spec.job} another parallelism while it runs; it pauses for about a second.",
    )
    def rescale_stream() -> None:
        rescale()

    return rescale_stream


def rescale_and_wait(client: JobClient, config: RescaleConfig, say: Any) -> RescaleRecord | None:
    """Returns the rescale once it is completed; None: the job runs at this parallelism already."""
    if config.parallelism is None and not config.operators:
        raise WeirError("the config names no parallelism: set parallelism, or operators with the uid of each")
    asked = client.rescale(config.parallelism, config.operators)
    if asked is None:
        say(f"{client.name} runs at this parallelism already: nothing to do")
        return None
    done = client.wait_for_rescale(asked, RESCALE_TIMEOUT_S, lambda record: say(f"rescaling: {record.state.value}"))
    if done.state is not RescaleState.COMPLETED:
        raise WeirError(f"job {client.name!r} was not rescaled, and goes on as before: {done.reason}")
    pause = "not known" if done.pause_ms is None else f"{done.pause_ms:.0f} ms"
    say(
        f"{client.name}: {done.slots_before} → {done.slots_after} slots, pause {pause}; its state ({done.rows} rows) "
        f"has the digest {done.digest_after}, as before"
    )
    return done


def _observation(spec: StreamSpec, done: RescaleRecord) -> dg.AssetObservation:
    """Returns the rescale as an observation of the stream, where Dagster plots slots and pause."""
    pause = {} if done.pause_ms is None else {"pause_ms": round(done.pause_ms, 1)}
    return dg.AssetObservation(
        spec.stream_key,
        description=f"rescaled from {done.slots_before} to {done.slots_after} slots",
        metadata={
            "slots": done.slots_after,
            **pause,
            "epoch": dg.MetadataValue.text(str(done.epoch)),
            "state_digest": done.digest_after,
            "parallelism": dg.MetadataValue.json(done.after),
        },
    )


def rescale_schedule(spec: StreamSpec, at: RescaleAt, job: dg.JobDefinition) -> dg.ScheduleDefinition:
    @dg.schedule(
        name=f"{spec.job}_rescale_{at.name}",
        cron_schedule=at.cron,
        job=job,
        default_status=dg.DefaultScheduleStatus.RUNNING,
        description=f"Rescales {spec.job} to {at.parallelism} while it runs.",
    )
    def rescale(context: dg.ScheduleEvaluationContext, weir: WeirStore) -> dg.RunRequest | dg.SkipReason:
        if (skipped := skip_unless_running(context, spec, weir)) is not None:
            return skipped
        return _request(spec, at.parallelism)

    return rescale


def autoscale_sensor(spec: StreamSpec, job: dg.JobDefinition) -> dg.SensorDefinition:
    """Returns the sensor that rescales the job by its measured load. A user turns it on, or the job stays as it is."""
    bounds = spec.autoscale
    assert bounds is not None

    @dg.sensor(
        name=f"{spec.job}_autoscale",
        job=job,
        minimum_interval_seconds=LOOK_EVERY_S,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Rescales {spec.job} within {bounds.least} to {bounds.most}, so that its busiest operator is busy "
        f"for {bounds.target_busy:.0%} of the time.",
    )
    def autoscale(context: dg.SensorEvaluationContext, weir: WeirStore) -> dg.RunRequest | dg.SkipReason:
        client = weir.client(context.instance, spec)
        try:
            status, changed_ms = client.status(), _changed_ms(client)
        except (NotRunning, WeirError) as error:
            return dg.SkipReason(f"{spec.job} can't be asked: {error}")
        if not status.running or status.rescales.under_way:
            return dg.SkipReason(f"{spec.job} is {status.rescales.under_way or status.phase.value}")
        now_ms = time.time_ns() // 1_000_000
        changed_ms = max(changed_ms, now_ms - (status.uptime_ms or 0))
        wanted = wanted_parallelism(bounds, status.parallelism, loads(status), changed_ms, now_ms)
        busiest = max((vertex.busy for vertex in status.vertices), default=0.0)
        if wanted is None:
            return dg.SkipReason(f"parallelism {status.parallelism} stays; the busiest operator is busy {busiest:.0%}")
        context.log.info(f"{spec.job}: busiest operator {busiest:.0%}: {status.parallelism} → {wanted}")
        return _request(spec, wanted, run_key=f"{client.store}-{changed_ms}-{wanted}")

    return autoscale


def loads(status: JobStatus) -> list[Load]:
    """Returns the load of each vertex. One that has another parallelism than the job does not follow it."""
    return [
        Load(vertex.parallelism, vertex.busy, vertex.back_pressured, vertex.parallelism == status.parallelism)
        for vertex in status.vertices
        if not vertex.finished
    ]


def _changed_ms(client: JobClient) -> int:
    """Returns when the last rescale ended, whatever its outcome; 0: there was none."""
    return max((record.ended_at_ms or 0 for record in client.rescales()), default=0)


def _request(spec: StreamSpec, parallelism: int, run_key: str | None = None) -> dg.RunRequest:
    config = dg.RunConfig(ops={f"rescale_{spec.job}": RescaleConfig(parallelism=parallelism)})
    return dg.RunRequest(run_key=run_key, run_config=config)
