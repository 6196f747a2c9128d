"""What a job looks like from outside: the JSON behind `weir status`, the live view and the REST interface."""

from __future__ import annotations

from typing import Any

from engine.cluster.jobmaster import JobMaster
from engine.cluster.launch import MasterLaunch
from engine.connectors.base import Guarantee
from engine.protocol import ledger
from engine.protocol.config import CheckpointingMode
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK

_SUMS = ("rows_in", "rows_out", "busy_ms", "idle_ms", "back_pressured_ms")


def describe(master: JobMaster, launch: MasterLaunch, now_ms: float, wall_ms: int) -> dict[str, Any]:
    graph = master.execution.graph
    vertices = [_vertex(master, v.id, v.label, v.parallelism, wall_ms) for v in graph.vertices]
    return {
        "job": graph.name,
        "path": launch.path,
        "phase": master.phase.value,
        "generation": master.attempt.generation,
        "attempt": master.attempt.attempt,
        "parallelism": max(vertex.parallelism for vertex in graph.vertices),
        "slots_needed": master.execution.slots,
        "guarantee": guarantee(master),
        "restarts": master.stats.restarts,
        "last_failure": master.stats.last_failure,
        "epoch": master.newest.epoch if master.newest else 0,
        "checkpoints": {
            "interval_ms": graph.checkpoints.interval_ms,
            "completed": master.stats.checkpoints_completed,
            "failed": master.stats.checkpoints_failed,
            "last": master.stats.last_checkpoint,
            "pending": [p.checkpoint for p in master.coordinator.pending] if master.coordinator else [],
        },
        "committed_rows": {uid: master.ledger.get(ledger.sink_rows(uid), 0) for uid, _ in graph.sinks},
        "read_rows": {
            v.source.uid: master.ledger.get(ledger.source_rows(v.source.uid), 0) for v in graph.vertices if v.source
        },
        "malformed_rows": {
            v.source.uid: master.ledger.get(ledger.malformed_rows(v.source.uid), 0) for v in graph.vertices if v.source
        },
        "slots": [{"slot": s.index, "pid": s.pid, "address": s.address} for s in master.slots.all],
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


def _vertex(master: JobMaster, vertex: str, label: str, parallelism: int, wall_ms: int) -> dict[str, Any]:
    subtasks = [m for i in range(parallelism) if (m := master.metrics.get(f"{vertex}[{i}]"))]
    result: dict[str, Any] = {name: sum(m[name] for m in subtasks) for name in _SUMS}
    marks = [m["watermark_ms"] for m in subtasks if m["watermark_ms"] is not None]
    watermark = min(marks) if len(marks) == parallelism else None
    if watermark in (MIN_WATERMARK, MAX_WATERMARK):
        watermark = None
    result |= {
        "id": vertex,
        "label": label,
        "parallelism": parallelism,
        "watermark_ms": watermark,
        "lag_ms": wall_ms - watermark if watermark is not None else None,
        "finished": bool(subtasks) and all(m["finished"] for m in subtasks),
    }
    return result
