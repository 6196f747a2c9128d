"""Which script has which port, and how the outputs of the two are compared: as lines of JSON, in any order."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

from engine.connectors.table import TableSink
from engine.testing import run

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ORIGINALS = {
    "pyflink": (
        "word_count",
        "tumbling_windows",
        "count_with_timeout",
        "rides_and_fares",
        "broadcast_rules",
        "session_windows",
    ),
    "spark": (
        "windowed_counts",
        "drop_duplicates",
        "stream_stream_join",
        "stream_static_join",
        "sessions_with_state",
    ),
}
"""The names of the scripts, by the system that runs them. Ports have the same names."""

NAMES = [name for names in ORIGINALS.values() for name in names]


def original(name: str) -> Path:
    """Returns the file of the original."""
    return next(HERE / system / f"{name}.py" for system, names in ORIGINALS.items() if name in names)


def port(name: str) -> Path:
    """Returns the file of the port."""
    return HERE / "weir" / f"{name}.py"


def recorded(name: str) -> Path:
    """Returns the file with what the original has printed."""
    return HERE / "expected" / f"{name}.jsonl"


def as_lines(printed: str) -> list[str]:
    """Returns the rows that a script has printed, each as one line, sorted."""
    rows = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    return sorted(json.dumps(row, sort_keys=True) for row in rows)


def ported(name: str, parallelism: int = 1) -> list[str]:
    """Runs a port in this process, and returns the rows of all its tables as the original prints them."""
    job = importlib.import_module(f"tests.ports.weir.{name}").job
    ran = run(job, parallelism=parallelism)
    tables = [sink.path for _, sink in ran.execution.graph.sinks if isinstance(sink, TableSink)]
    rows = [{"table": table, **row} for table in tables for row in ran.rows(table)]
    return sorted(json.dumps(row, sort_keys=True) for row in rows)
