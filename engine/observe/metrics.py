"""A job's figures in Prometheus' text format 0.0.4, made from its status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from engine.jobmaster.figures import SHARES, TIMES

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class _Family:
    """One metric: its samples share a name, and stand together."""

    name: str
    kind: str
    help: str
    samples: list[tuple[Mapping[str, Any], float]] = field(default_factory=list)

    def text(self, job: str) -> Iterator[str]:
        yield f"# HELP {self.name} {self.help}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.samples:
            pairs = ",".join(f'{name}="{_escaped(str(label))}"' for name, label in {"job": job, **labels}.items())
            yield f"{self.name}{{{pairs}}} {value!r}"


def exposition(status: Mapping[str, Any]) -> str:
    families = [family for family in [*_of_job(status), *_of_subtasks(status)] if family.samples]
    return "\n".join(line for family in families for line in family.text(status["job"])) + "\n"


def _of_job(status: Mapping[str, Any]) -> Iterator[_Family]:
    checkpoints, last = status["checkpoints"], status["checkpoints"]["last"]

    def one(name: str, kind: str, text: str, value: float | None) -> _Family:
        return _Family(name, kind, text, [({}, value)] if value is not None else [])

    yield one("weir_job_running", "gauge", "1 while records can flow.", int(status["phase"] == "running"))
    yield one(
        "weir_job_generation", "gauge", "Of the JobMaster: one more for each that took over.", status["generation"]
    )
    yield one("weir_job_uptime_seconds", "gauge", "Since the job last began to run.", _seconds(status["uptime_ms"]))
    yield one("weir_restarts_total", "counter", "Since the job was started.", status["restarts"])
    yield one("weir_slots_registered", "gauge", "Spark tasks that can be deployed to.", len(status["slots"]))
    yield one("weir_slots_needed", "gauge", "Slots that the job takes.", status["slots_needed"])
    yield one("weir_epoch", "gauge", "The newest that is published.", status["epoch"])
    for name, text in (("completed", "Published and committed"), ("failed", "Expired, declined or aborted")):
        yield one(f"weir_checkpoints_{name}_total", "counter", f"{text}, by this JobMaster.", checkpoints[name])
    if last:
        head, at = "weir_last_checkpoint", last["ended_at_ms"]
        yield one(f"{head}_duration_seconds", "gauge", "From trigger to commit.", _seconds(last["duration_ms"]))
        yield one(f"{head}_state_bytes", "gauge", "State files of all subtasks.", last["state_bytes"])
        yield one(f"{head}_timestamp_seconds", "gauge", "When it was committed, Unix time.", _seconds(at))
        parts = [({"part": name.removesuffix("_ms")}, last[name] / 1000) for name in TIMES if last[name] is not None]
        yield _Family(f"{head}_part_seconds", "gauge", "Longest of all subtasks, by part of the snapshot.", list(parts))
    for key, text in (
        ("read_rows", "Rows of each source in the newest epoch."),
        ("committed_rows", "Rows of each sink in the newest epoch."),
        ("malformed_rows", "Rows of each source that could not be read, in the newest epoch."),
    ):
        samples = [({"operator": uid}, rows) for uid, rows in status[key].items()]
        yield _Family(f"weir_{key}", "gauge", text, list(samples))


def _of_subtasks(status: Mapping[str, Any]) -> Iterator[_Family]:
    subtasks = [
        ({"vertex": vertex["id"], "subtask": subtask["subtask"]}, subtask)
        for vertex in status["vertices"]
        for subtask in vertex["subtasks"]
    ]

    def each(name: str, kind: str, text: str, key: str, scale: float = 1.0) -> _Family:
        samples = [(labels, subtask[key] / scale) for labels, subtask in subtasks if subtask[key] is not None]
        return _Family(name, kind, text, list(samples))

    yield each("weir_rows_in_total", "counter", "Rows taken in this attempt.", "rows_in")
    yield each("weir_rows_out_total", "counter", "Rows sent on, or written by sinks, in this attempt.", "rows_out")
    for name in SHARES:
        yield each(f"weir_{name}_ratio", "gauge", f"Share of the last seconds that it was {name}.", name)
        yield each(f"weir_{name}_seconds_total", "counter", f"Time that it was {name}.", f"{name}_ms", 1000)
    yield each("weir_watermark_lag_seconds", "gauge", "How far event time is behind the clock.", "lag_ms", 1000)


def _seconds(value_ms: float | None) -> float | None:
    return value_ms / 1000 if value_ms is not None else None


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
