"""Goal: a rehearsal's comparison names exactly the rows that differ, and says when it can't tell (H7).

Topology: two Weir tables of windows, and two of records, as two versions of a job would have published them.
Checks: equal tables pass; rows only in one version, changed rows and repeated rows are found by their labels; rows
outside of the compared time, new columns and the last digits of floats make no difference; an empty range is no pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from checks.comparison import compare
from checks.results import AuditResult, Verdict
from engine.connectors.table import TableSink
from engine.core.paths import JobPaths
from engine.core.sinks import WriterContext
from engine.graph.row_identity import RowIdentity
from engine.process.rehearsing import ComparableTable, Rehearsed
from engine.protocol.checkpoint import CommitPermit
from engine.protocol.ids import AttemptId
from engine.protocol.manifest import Committable, ManifestRef
from engine.store.directory import DirectoryStore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Judged = Callable[[ComparableTable], AuditResult]
STAMP = pa.timestamp("us", tz="UTC")
WINDOWS = RowIdentity(("app", "window_start"), "window_end", windows="pv")
RECORDS = RowIdentity((), "ts", source="views")


def table(folder: Path, job: str, name: str, parts: Sequence[pa.Table]) -> str:
    """Publishes each part as an epoch of a Weir table."""
    store, paths, sink = DirectoryStore(folder), JobPaths(job), TableSink(name)
    committer = sink.committer(store, paths)
    committer.claim("abc", 1)
    for epoch, rows in enumerate(parts, 1):
        attempt = AttemptId(epoch, 1)
        writer = sink.writer(WriterContext(0, attempt, store, paths, rows.schema, "abc"))
        writer.begin()
        for batch in rows.to_batches():
            writer.write(batch)
        piece = writer.pre_commit()
        output = [] if piece is None else [Committable("out", 0, attempt, epoch, 1, piece.persist())]
        committer.commit(CommitPermit.issue(ManifestRef("", "", epoch, epoch)), output)
    return str(folder / paths.table(name))


def at(second: float) -> datetime:
    return datetime.fromtimestamp(second, UTC)


def windows(*rows: tuple[str, int, int, float], **more: Any) -> pa.Table:
    columns: dict[str, Any] = {
        "app": [row[0] for row in rows],
        "window_start": pa.array([at(row[1]) for row in rows], STAMP),
        "window_end": pa.array([at(row[1] + 10) for row in rows], STAMP),
        "pv": pa.array([row[2] for row in rows], pa.int64()),
        "bytes": pa.array([row[3] for row in rows], pa.float64()),
    }
    return pa.table(columns | {name: [value] * len(rows) for name, value in more.items()})


def rehearsed(folder: Path, *tables: ComparableTable) -> Rehearsed:
    return Rehearsed(folder, "shop", "shop:job_v2", 7, 9, 3, list(tables), [])


@pytest.fixture
def judged(spark: SparkSession, tmp_path: Path) -> Judged:
    return lambda compared: compare(rehearsed(tmp_path, compared), lambda text: None, spark)


def of_windows(folder: Path, old: Sequence[pa.Table], new: Sequence[pa.Table], until: int = 40) -> ComparableTable:
    places = [table(folder, job, "pv", parts) for job, parts in (("old", old), ("new", new))]
    columns = ("app", "window_start", "window_end", "pv", "bytes")
    return ComparableTable("pv", *places, columns, WINDOWS, 10_000 - 1, until * 1000)


def labels(result: AuditResult) -> dict[str, tuple[Verdict, int]]:
    return {check.name.removeprefix("pv: "): (check.verdict, check.unexpected) for check in result.checks}


@pytest.mark.promise("H7")
def test_the_same_rows_in_other_epochs_and_files_pass(tmp_path: Path, judged: Judged) -> None:
    """The window that ends at 10 s is before the cut, that at 50 s behind the point which both have passed."""
    old = [windows(("a", 0, 5, 1.0)), windows(("a", 10, 1, 0.3), ("b", 10, 2, 2.0)), windows(("a", 20, 4, 4.0))]
    new = [
        windows(("b", 10, 2, 2.0), ("a", 20, 4, 4.0), plan="free"),
        windows(("a", 10, 1, 0.1 + 0.2), ("a", 40, 9, 9.0)),
    ]
    result = judged(of_windows(tmp_path, old, new))
    assert result.verdict is Verdict.PASSED, result
    assert (result.evaluated, result.expected) == (3, 3)
    assert result.figures["pv: rows of the old"] == result.figures["pv: rows of the new"] == 3
    page = Path(result.data_docs).read_text()
    assert "Rehearsal of shop with shop:job_v2, from epoch 7" in page and "passed" in page


@pytest.mark.promise("H7")
def test_rows_of_one_version_and_changed_rows_are_named(tmp_path: Path, judged: Judged) -> None:
    old = [windows(("a", 10, 1, 1.0), ("b", 10, 2, 2.0), ("c", 10, 3, 3.0))]
    new = [windows(("a", 10, 1, 1.0), ("b", 10, 7, 2.0), ("d", 10, 3, 3.0), ("a", 20, 1, 1.0), ("a", 20, 1, 1.0))]
    result = judged(of_windows(tmp_path, old, new))
    assert result.verdict is Verdict.FAILED
    assert labels(result) == {
        "only in the old": (Verdict.FAILED, 1),
        "only in the new": (Verdict.FAILED, 2),
        "changed": (Verdict.FAILED, 1),
    }
    (changed,) = next(check for check in result.checks if check.name == "pv: changed").rows
    assert changed["app"] == "b" and '"pv":2' in changed["old"] and '"pv":7' in changed["new"]


@pytest.mark.promise("H7")
def test_a_row_that_is_doubled_in_the_new_version_is_found(tmp_path: Path, judged: Judged) -> None:
    old = [windows(("a", 10, 1, 1.0))]
    result = judged(of_windows(tmp_path, old, [windows(("a", 10, 1, 1.0), ("a", 10, 1, 1.0))]))
    assert labels(result)["only in the new"] == (Verdict.FAILED, 1)


@pytest.mark.promise("H7")
def test_records_without_a_key_are_counted(tmp_path: Path, judged: Judged) -> None:
    def records(*rows: tuple[str, float]) -> pa.Table:
        return pa.table({"app": [row[0] for row in rows], "ts": pa.array([at(row[1]) for row in rows], STAMP)})

    old = table(tmp_path, "old", "raw", [records(("a", 1), ("a", 1), ("b", 2), ("late", 99))])
    new = table(tmp_path, "new", "raw", [records(("b", 2), ("a", 1), ("c", 3))])
    result = judged(ComparableTable("raw", old, new, ("app", "ts"), RECORDS, 0, 10_000))
    found = {check.name: [row["app"] for row in check.rows] for check in result.checks}
    assert found == {"raw: only in the old": ["a"], "raw: only in the new": ["c"]}


@pytest.mark.promise("H7")
def test_nothing_to_compare_is_no_pass(tmp_path: Path, judged: Judged) -> None:
    same = [windows(("a", 10, 1, 1.0))]
    empty = judged(of_windows(tmp_path, same, same, until=15))
    assert empty.verdict is Verdict.COULD_NOT_RUN
    assert "rehearse longer" in empty.checks[0].summary
    blind = ComparableTable("raw", "", "", (), None, why_not="its rows have no event time")
    result = judged(blind)
    assert result.verdict is Verdict.COULD_NOT_RUN and result.checks[0].summary == "its rows have no event time"
