"""What a job looks like from outside: the JSON behind `weir status`, the live view and the REST interface."""

from __future__ import annotations

from typing import Any

from engine.core.sinks import Guarantee
from engine.host.run_folder import MasterLaunch
from engine.jobmaster.figures import ROWS, SHARES
from engine.jobmaster.master import JobMaster, Phase
from engine.observe.timeline import Timeline
from engine.protocol import ledger
from engine.protocol.config import CheckpointingMode
from engine.protocol.ids import SubtaskId
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK

_TOTALS = (*ROWS, *(f"{name}_ms" for name in SHARES))
_RATES = tuple(f"{name}_per_s" for name in ROWS)


def describe(
    master: JobMaster, launch: MasterLaunch, timeline: Timeline, wall_ms: int, spark_ui: str | None
) -> dict[str, Any]:
    graph = master.execution.graph
    vertices = [describe_vertex(master, vertex.id, wall_ms) for vertex in graph.vertices]
    since_ms = master.stats.running_since_ms if master.phase is Phase.RUNNING else None
    last = timeline.last_completed
    return {
        "job": graph.name,
        "path": launch.path,
        "phase": master.phase.value,
        "generation": master.attempt.generation,
        "attempt": master.attempt.attempt,
        "parallelism": max(vertex.parallelism for vertex in graph.vertices),
        "slots_needed": master.execution.slots,
        "guarantee": guarantee(master),
        "started_at_ms": timeline.started_at_ms,
        "uptime_ms": wall_ms - since_ms if since_ms is not None else None,
        "restarts": timeline.restarts_since_start,
        "last_failure": master.stats.last_failure,
        "epoch": master.newest.epoch if master.newest else 0,
        "checkpoints": {
            "interval_ms": graph.checkpoints.interval_ms,
            "completed": master.stats.checkpoints_completed,
            "failed": master.stats.checkpoints_failed,
            "last": last.summary() if last else None,
            "pending": [p.checkpoint for p in master.coordinator.pending] if master.coordinator else [],
        },
        "committed_rows": {uid: master.ledger.get(ledger.sink_rows(uid), 0) for uid, _ in graph.sinks},
        "read_rows": {
            v.source.uid: master.ledger.get(ledger.source_rows(v.source.uid), 0) for v in graph.vertices if v.source
        },
        "malformed_rows": {
            v.source.uid: master.ledger.get(ledger.malformed_rows(v.source.uid), 0) for v in graph.vertices if v.source
        },
        "slots": [
            {"slot": s.index, "pid": s.pid, "address": s.address, "task": s.task_attempt} for s in master.slots.all
        ],
        "spark_ui": spark_ui,
        "vertices": vertices,
        "sinks": {
            operator.uid: {
                "rows": master.ledger.get(ledger.sink_rows(operator.uid), 0),
                "watermark_ms": shown["watermark_ms"],
                "lag_ms": shown["lag_ms"],
            }
            for vertex, shown in zip(graph.vertices, vertices, strict=True)
            for operator in vertex.operators
            if operator.sink is not None
        },
    }


def guarantee(master: JobMaster) -> str:
    """The weakest of engine and sinks (the sources here can all be reset)."""
    graph = master.execution.graph
    if graph.checkpoints.interval_ms is None:
        return "at most once between checkpoints made by hand"
    sinks = [sink.guarantee for _, sink in graph.sinks]
    weakest = graph.checkpoints.mode is CheckpointingMode.AT_LEAST_ONCE or Guarantee.AT_LEAST_ONCE in sinks
    return str((Guarantee.AT_LEAST_ONCE if weakest else Guarantee.EXACTLY_ONCE).value)


def describe_vertex(master: JobMaster, vertex_id: str, wall_ms: int) -> dict[str, Any]:
    """Rows and rates are those of its subtasks together, shares their mean, its watermark the lowest."""
    vertex = master.execution.graph.vertex(vertex_id)
    subtasks = [_subtask(master, SubtaskId(vertex_id, index), wall_ms) for index in range(vertex.parallelism)]
    marks = [s["watermark_ms"] for s in subtasks if s["watermark_ms"] is not None]
    watermark = min(marks) if len(marks) == len(subtasks) else None
    return {
        "id": vertex_id,
        "label": vertex.label,
        "operators": vertex.uids,
        "parallelism": vertex.parallelism,
        **{name: sum(s[name] for s in subtasks) for name in (*_TOTALS, *_RATES)},
        **{name: round(sum(s[name] for s in subtasks) / len(subtasks), 3) for name in SHARES},
        **_clock(watermark, wall_ms),
        "finished": all(s["finished"] for s in subtasks),
        "subtasks": subtasks,
    }


def _subtask(master: JobMaster, subtask: SubtaskId, wall_ms: int) -> dict[str, Any]:
    totals, rate = master.metrics.get(str(subtask), {}), master.rates.of(str(subtask))
    return {
        "subtask": subtask.index,
        "slot": master.execution.slot_of(subtask),
        **{name: totals.get(name, 0) for name in _TOTALS},
        **{name: round(getattr(rate, name), 1) if rate else 0.0 for name in _RATES},
        **{name: round(getattr(rate, name), 3) if rate else 0.0 for name in SHARES},
        **_clock(totals.get("watermark_ms"), wall_ms),
        "finished": bool(totals.get("finished")),
    }


def _clock(watermark_ms: int | None, wall_ms: int) -> dict[str, int | None]:
    """Neither at the start (−∞) nor at the end (+∞) is there something to show."""
    if watermark_ms is None or watermark_ms in (MIN_WATERMARK, MAX_WATERMARK):
        return {"watermark_ms": None, "lag_ms": None}
    return {"watermark_ms": watermark_ms, "lag_ms": wall_ms - watermark_ms}
