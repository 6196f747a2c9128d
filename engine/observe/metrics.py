"""Renders a job's status as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE
from prometheus_client.registry import Collector

from engine.jobmaster.figures import SHARES, TIMES
from engine.jobmaster.status import JobStatus

__all__ = ["CONTENT_TYPE", "exposition"]


def exposition(status: JobStatus) -> bytes:
    """Returns the status in Prometheus' text format."""
    registry = CollectorRegistry()
    registry.register(_StatusCollector(status))
    return generate_latest(registry)


class _StatusCollector(Collector):
    """Every metric has the label `job`. A metric without a value is left out."""

    def __init__(self, status: JobStatus) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        of_job = (*self._of_job(), *self._of_last_checkpoint())
        for metric in (*of_job, *self._of_operators(), *self._of_functions(), *self._of_subtasks()):
            if metric.samples:
                yield metric

    def _gauge(self, name: str, text: str, value: float | None) -> Metric:
        metric = GaugeMetricFamily(name, text, labels=["job"])
        if value is not None:
            metric.add_metric([self._status.job], value)
        return metric

    def _counter(self, name: str, text: str, value: float) -> Metric:
        metric = CounterMetricFamily(name, text, labels=["job"])
        metric.add_metric([self._status.job], value)
        return metric

    def _of_job(self) -> Iterator[Metric]:
        status = self._status
        yield self._gauge("weir_job_running", "1 while records can flow.", int(status.running))
        yield self._gauge(
            "weir_job_generation", "Generation of the JobMaster: each takeover adds one.", status.generation
        )
        yield self._gauge(
            "weir_job_uptime_seconds", "Time since the job last began to run.", _seconds(status.uptime_ms)
        )
        yield self._counter("weir_restarts", "Restarts since the job was started.", status.restarts)
        yield self._counter(
            "weir_jobmaster_deaths", "JobMasters that died since the job was started.", status.jobmaster_deaths
        )
        ready = int(status.standby.ready) if status.standby is not None else None
        yield self._gauge("weir_standby_ready", "1 if a standby can take over at once.", ready)
        yield self._gauge("weir_slots_registered", "Spark tasks that can be deployed to.", len(status.slots))
        yield self._gauge("weir_slots_needed", "Slots that the job takes.", status.slots_needed)
        yield self._gauge("weir_epoch", "The newest published epoch.", status.epoch)
        checkpoints = status.checkpoints
        yield self._counter(
            "weir_checkpoints_completed",
            "Checkpoints that this JobMaster published and committed.",
            checkpoints.completed,
        )
        yield self._counter(
            "weir_checkpoints_failed",
            "Checkpoints of this JobMaster that expired, were declined or aborted.",
            checkpoints.failed,
        )
        yield self._gauge("weir_epoch_held", "1 while a commit gate holds an epoch.", int(bool(status.held)))
        rescales = status.rescales
        yield self._counter("weir_rescales_completed", "Rescales that the history knows.", rescales.completed)
        yield self._counter("weir_rescales_failed", "Rescales that failed; the job went on as before.", rescales.failed)
        yield self._gauge(
            "weir_last_rescale_pause_seconds",
            "Time in which no record was processed, in the last rescale.",
            _seconds(rescales.last_pause_ms),
        )

    def _of_last_checkpoint(self) -> Iterator[Metric]:
        last = self._status.checkpoints.last
        if last is None:
            return
        head = "weir_last_checkpoint"
        yield self._gauge(
            f"{head}_duration_seconds", "Time from its trigger to its commit.", _seconds(last.duration_ms)
        )
        yield self._gauge(f"{head}_state_bytes", "Size of the state files of all subtasks.", last.state_bytes)
        yield self._gauge(f"{head}_timestamp_seconds", "Unix time of its commit.", _seconds(last.ended_at_ms))
        parts = GaugeMetricFamily(
            f"{head}_part_seconds", "Longest time of all subtasks, by part of the snapshot.", labels=["job", "part"]
        )
        for name in TIMES:
            value_ms = getattr(last, name)
            if value_ms is not None:
                parts.add_metric([self._status.job, name.removesuffix("_ms")], value_ms / 1000)
        yield parts

    def _of_operators(self) -> Iterator[Metric]:
        status = self._status
        for name, text, rows_by_uid in (
            ("weir_read_rows", "Rows of each source in the newest epoch.", status.read_rows),
            ("weir_committed_rows", "Rows of each sink in the newest epoch.", status.committed_rows),
            (
                "weir_malformed_rows",
                "Rows of each source that could not be read, in the newest epoch.",
                status.malformed_rows,
            ),
        ):
            metric = GaugeMetricFamily(name, text, labels=["job", "operator"])
            for uid, rows in rows_by_uid.items():
                metric.add_metric([status.job, uid], rows)
            yield metric
        for name, text, rows_by_uid in (
            ("weir_late_rows", "Rows that each operator dropped, as their window had fired.", status.late_rows),
            ("weir_untimed_rows", "Rows without an event time, which are in no window.", status.untimed_rows),
            ("weir_failed_rows", "Rows that each operator left out, as it could not process them.", status.failed_rows),
            ("weir_withheld_rows", "Rows that the gate of each sink kept out of its table.", status.withheld_rows),
        ):
            counter = CounterMetricFamily(name, text, labels=["job", "operator"])
            for uid, rows in rows_by_uid.items():
                counter.add_metric([status.job, uid], rows)
            yield counter

    def _of_functions(self) -> Iterator[Metric]:
        labels = ["job", "operator", "name"]
        counters = CounterMetricFamily("weir_user_count", "Counters of functions in the newest epoch.", labels=labels)
        for uid, counts in self._status.user_counts.items():
            for name, value in counts.items():
                counters.add_metric([self._status.job, uid, name], value)
        gauges = GaugeMetricFamily("weir_user_gauge", "Gauges of functions.", labels=[*labels, "subtask"])
        for subtask in (subtask for vertex in self._status.vertices for subtask in vertex.subtasks):
            for uid, values in subtask.gauges.items():
                for name, shown in values.items():
                    gauges.add_metric([self._status.job, uid, name, str(subtask.subtask)], shown)
        yield counters
        yield gauges

    def _of_subtasks(self) -> Iterator[Metric]:
        yield self._by_subtask(CounterMetricFamily, "weir_rows_in", "Rows taken in this attempt.", "rows_in")
        yield self._by_subtask(
            CounterMetricFamily, "weir_rows_out", "Rows sent on, or written by sinks, in this attempt.", "rows_out"
        )
        for name in SHARES:
            share, time = f"Share of the last seconds that it was {name}.", f"Time that it was {name}."
            yield self._by_subtask(GaugeMetricFamily, f"weir_{name}_ratio", share, name)
            yield self._by_subtask(CounterMetricFamily, f"weir_{name}_seconds", time, f"{name}_ms", 1000)
        lag = "How far event time is behind the clock."
        yield self._by_subtask(GaugeMetricFamily, "weir_watermark_lag_seconds", lag, "lag_ms", 1000)

        yield from self._of_alignment()

    def _of_alignment(self) -> Iterator[Metric]:
        labels = ["job", "vertex", "subtask", "group"]
        paused = GaugeMetricFamily(
            "weir_alignment_paused_splits", "Splits that wait for others of their alignment group.", labels=labels
        )
        drift = GaugeMetricFamily(
            "weir_alignment_drift_seconds", "How far the first of them is ahead of the slowest.", labels=labels
        )
        found = ((vertex.id, subtask) for vertex in self._status.vertices for subtask in vertex.subtasks)
        for vertex_id, subtask in found:
            if (waits := subtask.waits) is None:
                continue
            of = [self._status.job, vertex_id, str(subtask.subtask), waits.group]
            paused.add_metric(of, waits.paused)
            if waits.drift_ms is not None:
                drift.add_metric(of, waits.drift_ms / 1000)
        yield paused
        yield drift

    def _by_subtask(
        self,
        family: type[CounterMetricFamily] | type[GaugeMetricFamily],
        name: str,
        text: str,
        field: str,
        scale: float = 1.0,
    ) -> Metric:
        metric = family(name, text, labels=["job", "vertex", "subtask"])
        for vertex in self._status.vertices:
            for subtask in vertex.subtasks:
                value = getattr(subtask, field)
                if value is not None:
                    metric.add_metric([self._status.job, vertex.id, str(subtask.subtask)], value / scale)
        return metric


def _seconds(value_ms: float | None) -> float | None:
    return value_ms / 1000 if value_ms is not None else None
