"""A job whose code has changed goes on from its last epoch exactly, or is refused before it touches anything (D8).

Topology: numbers → count per key → table "counts", and numbers → table "raw", written with the public API.
Faults: the job is stopped after an epoch, in some tests between its record and its commit, and started again changed.
Checks: each number is in each table once and the counts of each key have no gap; or the job is refused, with the
operator, the change and the fix, and the store is as it was.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pytest

from engine.api import (
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    StreamEnvironment,
    ValueStateDescriptor,
)
from engine.connectors.table import TableCommitter, TableSink
from engine.core.errors import StoreError
from engine.core.functions import Row
from engine.jobmaster.events import Completed, StateDropped
from engine.testing import Checkpoint, JobFailed, ListSource, LocalRun, run

FIRST, ALL = 6, 12
KEYS = ("a", "b")


class Count(KeyedProcessFunction):
    def __init__(self, state: str = "seen", kind: pa.DataType | None = None) -> None:
        self._descriptor = ValueStateDescriptor(state, kind or pa.int64())

    def open(self, context: RuntimeContext) -> None:
        self._seen = context.get_state(self._descriptor)

    def process_element(self, value: Row, context: ProcessContext) -> list[Row]:
        seen = int(self._seen.value() or 0) + 1
        self._seen.update(seen)
        return [{"n": value["n"], "key": value["key"], "seen": seen}]


@dataclass(frozen=True)
class Version:
    """One version of the job. Each test changes some fields of the first one."""

    source: str = "numbers"
    splits: int = 1
    operator: str = "count"
    keys: tuple[str, ...] = ("key",)
    state: str = "seen"
    state_type: pa.DataType | None = None
    sink: str = "counts"
    table: str = "counts"
    columns: str = "n long, key string, seen long"
    raw: str | None = "raw"
    more: bool = False
    stateless: bool = False
    max_parallelism: int = 128

    def __call__(self, env: StreamEnvironment) -> None:
        env.max_parallelism = self.max_parallelism
        records: list[Any] = [{"n": n, "key": KEYS[n % 2], "other": n % 3} for n in range(ALL)]
        records.insert(FIRST, Checkpoint())
        splits = [records, *([] for _ in range(self.splits - 1))]
        numbers = env.from_source(ListSource(*splits), "n long, key string, other long", uid=self.source)
        if self.stateless:
            numbers = numbers.map(lambda row: row)
        if self.raw is not None:
            numbers.sink_to(TableSink("raw"), uid=self.raw)
        if self.more:
            numbers.sink_to(TableSink("more"), uid="more")
        counted = numbers.key_by(*self.keys).process(
            Count(self.state, self.state_type), uid=self.operator, schema="n long, key string, seen long"
        )
        if "seen string" in self.columns:
            counted = counted.map(lambda row: {**row, "seen": str(row["seen"])}, schema=self.columns)
        counted.sink_to(TableSink(self.table), uid=self.sink)


BEFORE = Version()


def after_one_epoch(version: Version = BEFORE, parallelism: int = 1) -> LocalRun:
    """Returns the run of a job that was stopped right after its first epoch was committed."""
    stopped = run(version, parallelism=parallelism, until=_one_epoch_is_committed)
    assert sorted(row["n"] for row in stopped.rows("raw")) == list(range(FIRST))
    return stopped


def _one_epoch_is_committed(job: LocalRun) -> bool:
    return committed_epochs(job) == 1


def epoch_without_commit(monkeypatch: pytest.MonkeyPatch, version: Version = BEFORE) -> LocalRun:
    """Returns the run of a job that was stopped after its first epoch was published and before any commit."""
    with monkeypatch.context() as patched:
        patched.setattr(TableCommitter, "commit", _fail)
        stopped = run(version, until=lambda job: job.epochs == 1)
    assert not [path for path in stopped.store.list("test/tables") if path.endswith("_spark_metadata/0")]
    return stopped


def _fail(*arguments: object) -> None:
    raise StoreError("the JobMaster dies here")


def check_exact(job: LocalRun, counts: str = "counts", raw_until: int = ALL) -> None:
    assert sorted(row["n"] for row in job.rows("raw")) == list(range(raw_until))
    rows = job.rows(counts)
    assert sorted(row["n"] for row in rows) == list(range(ALL))
    for key in KEYS:
        assert sorted(row["seen"] for row in rows if row["key"] == key) == list(range(1, ALL // 2 + 1))


def refusal(version: Callable[[StreamEnvironment], None], stopped: LocalRun, allow: bool = False) -> str:
    """Starts the changed job, which must be refused before it changes anything in the store but the log."""
    before = _data(stopped)
    with pytest.raises(JobFailed) as refused:
        run(version, after=stopped, allow_non_restored_state=allow)
    assert _data(stopped) == before
    return str(refused.value)


def _data(job: LocalRun) -> dict[str, bytes]:
    paths = [path for path in job.store.list("test") if not path.startswith("test/log/")]
    return {path: job.store.read(path) for path in paths}


# --- changes that lose something are refused, and the fix is named ---


@pytest.mark.promise("D8")
def test_a_renamed_operator_is_refused_and_the_rename_is_guessed() -> None:
    said = refusal(replace(BEFORE, operator="count2"), after_one_epoch())
    assert "can't go on from epoch 1" in said
    assert "count: the process is gone, and its state would be lost; count2 is new and keeps the same state" in said
    assert 'write uid="count" again' in said


@pytest.mark.promise("D8")
def test_a_renamed_source_is_refused_because_everything_would_be_read_again() -> None:
    said = refusal(replace(BEFORE, source="digits"), after_one_epoch())
    assert "numbers: the source is gone, and its positions would be lost; digits is new" in said
    assert 'write uid="numbers" again' in said


@pytest.mark.promise("D8", "D11")
@pytest.mark.parametrize("committed", [True, False])
def test_a_renamed_sink_is_refused(committed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = after_one_epoch() if committed else epoch_without_commit(monkeypatch)
    said = refusal(replace(BEFORE, sink="out"), stopped)
    assert "counts: the sink of the table 'counts' is gone; out is new and writes the same table" in said
    check_exact(run(BEFORE, after=stopped))


@pytest.mark.promise("D8")
def test_a_sink_column_of_another_type_is_refused_because_readers_would_fail() -> None:
    said = refusal(replace(BEFORE, columns="n long, key string, seen string"), after_one_epoch())
    assert "counts: the column seen of the table 'counts' was int64, is string" in said
    assert "uid of its own" in said


@pytest.mark.promise("D8")
def test_another_table_under_the_same_uid_is_refused() -> None:
    said = refusal(replace(BEFORE, table="counts2"), after_one_epoch())
    assert "counts: wrote the table 'counts', is to write the table 'counts2'" in said
    assert "uid of its own" in said


@pytest.mark.promise("D8")
@pytest.mark.parametrize(("keys", "now"), [(("other",), "other int64"), (("key", "other"), "key string, other int64")])
def test_other_key_columns_are_refused(keys: tuple[str, ...], now: str) -> None:
    said = refusal(replace(BEFORE, keys=keys), after_one_epoch())
    assert f"count: was keyed by key string, is keyed by {now}" in said


@pytest.mark.promise("D7")
def test_another_max_parallelism_is_refused() -> None:
    said = refusal(replace(BEFORE, max_parallelism=64), after_one_epoch())
    assert "max_parallelism was 128, is 64" in said
    assert "env.max_parallelism = 128" in said


@pytest.mark.promise("D8")
def test_all_differences_are_named_at_once() -> None:
    said = refusal(replace(BEFORE, operator="count2", source="digits", table="counts2"), after_one_epoch())
    for uid in ("count", "numbers", "counts"):
        assert f"\n  {uid}: " in said


# --- the option drops what is gone, and nothing else ---


@pytest.mark.promise("D8")
def test_the_option_drops_the_state_of_a_gone_operator_and_says_so() -> None:
    stopped = after_one_epoch()
    job = run(replace(BEFORE, operator="count2"), after=stopped, allow_non_restored_state=True)
    dropped = [event for event in job.events if isinstance(event, StateDropped)]
    assert [event.uid for event in dropped] == ["count"]
    assert sorted(row["n"] for row in job.rows("counts")) == list(range(ALL))
    assert sorted(row["seen"] for row in job.rows("counts") if row["key"] == "a") == [1, 1, 2, 2, 3, 3]


@pytest.mark.promise("D8", "D11")
@pytest.mark.parametrize("committed", [True, False])
def test_the_option_ends_the_table_of_a_gone_sink_with_all_that_was_published(
    committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = after_one_epoch() if committed else epoch_without_commit(monkeypatch)
    check_exact(run(replace(BEFORE, raw=None), after=stopped, allow_non_restored_state=True), raw_until=FIRST)


@pytest.mark.promise("D8", "D11")
@pytest.mark.parametrize("committed", [True, False])
def test_with_the_option_a_renamed_sink_goes_on_with_its_table(
    committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = after_one_epoch() if committed else epoch_without_commit(monkeypatch)
    check_exact(run(replace(BEFORE, sink="out"), after=stopped, allow_non_restored_state=True))


@pytest.mark.promise("D8")
@pytest.mark.parametrize(
    "changed",
    [
        replace(BEFORE, keys=("other",)),
        replace(BEFORE, table="counts2"),
        replace(BEFORE, columns="n long, key string, seen string"),
        replace(BEFORE, max_parallelism=64),
    ],
)
def test_the_option_does_not_allow_changes_of_what_is_still_there(changed: Version) -> None:
    refusal(changed, after_one_epoch(), allow=True)


# --- changes that lose nothing go on exactly ---


@pytest.mark.promise("D7", "D8")
@pytest.mark.parametrize("parallelism", [1, 2, 3])
@pytest.mark.parametrize(
    "changed", [BEFORE, replace(BEFORE, stateless=True), replace(BEFORE, more=True)], ids=["same", "stateless", "sink"]
)
def test_parallelism_stateless_operators_and_new_sinks_may_change(changed: Version, parallelism: int) -> None:
    job = run(changed, after=after_one_epoch(), parallelism=parallelism)
    check_exact(job)
    if changed.more:
        assert sorted(row["n"] for row in job.rows("more")) == list(range(FIRST, ALL))


@pytest.mark.promise("D8")
def test_a_new_table_works_at_any_epoch_also_after_the_job_was_stopped_again() -> None:
    stopped = run(Many(more=False), until=lambda job: committed_epochs(job) == 22)
    for _ in range(12):
        stopped = run(Many(more=True), after=stopped, until=lambda job: committed_epochs(job) == 2)
    assert sorted(row["n"] for row in stopped.rows("raw")) == list(range(34))
    assert sorted(row["n"] for row in stopped.rows("more")) == list(range(22, 34))


def committed_epochs(job: LocalRun) -> int:
    return sum(isinstance(event, Completed) for event in job.events)


@dataclass(frozen=True)
class Many:
    """A job with one record per epoch, into the table "raw" and, if asked for, "more"."""

    more: bool

    def __call__(self, env: StreamEnvironment) -> None:
        records: list[Any] = []
        for n in range(60):
            records += [{"n": n}, Checkpoint()]
        numbers = env.from_source(ListSource(records), "n long", uid="numbers")
        numbers.sink_to(TableSink("raw"), uid="raw")
        if self.more:
            numbers.sink_to(TableSink("more"), uid="more")


# --- state that a function asks for in open() is compared where the function runs ---


@pytest.mark.promise("D8")
def test_a_renamed_state_of_a_function_fails_the_job_instead_of_starting_empty() -> None:
    with pytest.raises(JobFailed) as failed:
        run(replace(BEFORE, state="counted"), after=after_one_epoch())
    assert "the state 'seen' is in the snapshot, but open() does not ask for it" in str(failed.value)


@pytest.mark.promise("D8")
def test_a_state_of_another_type_fails_the_job() -> None:
    with pytest.raises(JobFailed, match="state 'seen' was saved as int64, but the job now declares string"):
        run(replace(BEFORE, state_type=pa.string()), after=after_one_epoch())


# --- a table keeps its columns and its place, whoever writes it and whenever ---


@dataclass(frozen=True)
class Coming:
    """A job with one record per epoch, into the table "raw" and, under some uid, into the table "t"."""

    uid: str | None = "t"
    columns: str = "n long"

    def __call__(self, env: StreamEnvironment) -> None:
        records: list[Any] = []
        for n in range(60):
            records += [{"n": n}, Checkpoint()]
        numbers = env.from_source(ListSource(records), "n long", uid="numbers")
        numbers.sink_to(TableSink("raw"), uid="raw")
        if self.uid is not None:
            cast = str if self.columns == "n string" else int
            numbers.map(lambda row: {"n": cast(row["n"])}, schema=self.columns).sink_to(TableSink("t"), uid=self.uid)


def went_on(job: Coming, after: LocalRun | None, epochs: int = 2) -> LocalRun:
    """Runs the job for some epochs with a record each. One that goes on has an empty epoch before them."""
    due = epochs + (after is not None)
    return run(job, after=after, until=lambda job: committed_epochs(job) == due, allow_non_restored_state=True)


STRINGS = Coming(columns="n string")


@pytest.mark.promise("D8")
@pytest.mark.parametrize("committed", [True, False])
def test_a_renamed_sink_can_t_bring_other_columns_into_its_table(
    committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = after_one_epoch() if committed else epoch_without_commit(monkeypatch)
    changed = replace(BEFORE, sink="out", columns="n long, key string, seen string")
    said = refusal(changed, stopped, allow=True)
    assert "out: the column seen of the table 'counts' was int64, is string; its readers would fail" in said


@pytest.mark.promise("D8")
@pytest.mark.parametrize("uid", ["t", "again"])
@pytest.mark.parametrize("away", [1, 21])
def test_a_sink_that_returns_after_some_epochs_finds_its_table_with_the_columns_it_had(away: int, uid: str) -> None:
    stopped = went_on(Coming(None), went_on(Coming(), None), away)
    said = refusal(replace(STRINGS, uid=uid), stopped, allow=True)
    assert f"{uid}: the column n of the table 't' was int64, is string; its readers would fail" in said
    job = went_on(Coming(uid), stopped)
    assert sorted(row["n"] for row in job.rows("t")) == [0, 1, away + 2, away + 3]


@pytest.mark.promise("D8")
def test_a_table_that_has_published_nothing_may_have_other_columns() -> None:
    nothing = run(Coming(), until=lambda job: bool(job.store.list("test/tables/t")))
    assert nothing.epochs == 0
    assert went_on(STRINGS, nothing, 1).rows("t") == [{"n": "0"}, {"n": "1"}]


@pytest.mark.promise("D8")
@pytest.mark.parametrize("epochs", [2, 10, 11])
def test_a_table_that_was_deleted_is_named_and_begins_anew_if_that_is_allowed(epochs: int) -> None:
    stopped = went_on(Coming(), None, epochs)
    stopped.store.delete("test/tables/t")
    said = refusal(Coming(), stopped)
    assert "t: the table 't' is gone: its folder was deleted or moved away" in said
    assert f"begins it anew with epoch {epochs + 1}" in said
    for _ in range(6):  # 12 epochs: it may stop at any
        stopped = went_on(Coming(), stopped, 1)
    assert sorted(row["n"] for row in stopped.rows("t")) == list(range(epochs, epochs + 6))
    assert sorted(row["n"] for row in stopped.rows("raw")) == list(range(epochs + 6))


@pytest.mark.promise("D8")
@pytest.mark.parametrize("epochs", [2, 10, 11])
def test_a_table_that_was_deleted_with_its_sink_does_not_keep_the_job_from_going_on(epochs: int) -> None:
    stopped = went_on(Coming(), None, epochs)
    stopped.store.delete("test/tables/t")
    said = refusal(Coming(None), stopped)
    assert "t: the sink of the table 't' is gone, and so is the table" in said
    job = went_on(Coming(None), stopped)
    assert not job.store.list("test/tables/t")
    assert sorted(row["n"] for row in job.rows("raw")) == list(range(epochs + 2))


@pytest.mark.promise("D8", "D11")
def test_a_table_that_begins_anew_may_be_interrupted_before_its_first_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = went_on(Coming(), None, 10)
    stopped.store.delete("test/tables/t")
    with monkeypatch.context() as patched:
        patched.setattr(TableCommitter, "abort_unknown", _fail)
        stopped = run(
            Coming(),
            after=stopped,
            until=lambda job: len(job.store.list("test/tables/t")) > 1,
            allow_non_restored_state=True,
        )
    assert sorted(row["n"] for row in went_on(Coming(), stopped).rows("t")) == [10, 11]
