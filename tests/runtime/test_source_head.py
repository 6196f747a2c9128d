"""The head of a source: splits in turn, a watermark per split, of which the lowest counts (B1), and positions."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.connectors.generator import GeneratorSource
from engine.core.errors import SchemaMismatch, UserFunctionError
from engine.core.event_time import EventTimeStrategy, event_times, latest, with_event_times
from engine.core.sources import Dealt, Discovery, FixedSource, SourceContext, SplitReader, assigned
from engine.protocol.failures import Fault
from engine.protocol.signals import MAX_WATERMARK, MIN_WATERMARK
from engine.protocol.watermark_alignment import AlignmentWait, WatermarkAlignment
from engine.runtime.operators.base import RestoredState
from engine.runtime.operators.columnar import AssignTimestamps
from engine.runtime.source_head import SourceHead
from engine.state.digests import digest
from tests.fakes import Collected, FakeClock, context

SCHEMA = pa.schema([("ts", pa.int64())])


class Script(FixedSource):
    """Per split the batches it gives, one a poll; None: none now."""

    def __init__(self, splits: dict[str, list[list[int] | None]], schema: pa.Schema = SCHEMA) -> None:
        self.script = splits
        self.schema = schema
        self.closed: list[str] = []

    def splits(self) -> Sequence[str]:
        return list(self.script)

    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        return _ScriptReader(self, split, position or 0)


class _ScriptReader(SplitReader):
    def __init__(self, source: Script, split: str, position: int) -> None:
        self._source, self._split, self._position = source, split, position
        self.wakeup: float | None = None

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        values = self._source.script[self._split][self._position]
        self._position += 1
        return None if values is None else pa.record_batch([pa.array(values, pa.int64())], schema=self._source.schema)

    @property
    def position(self) -> int:
        return self._position

    @property
    def finished(self) -> bool:
        return self._position >= len(self._source.script[self._split])

    @property
    def wakeup_ms(self) -> float | None:
        return 10.0 * (int(self._split) + 1)

    def close(self) -> None:
        self._source.closed.append(self._split)


def head(
    source: FixedSource, bound_ms: int | None = 0, restored: RestoredState | None = None, subtask: int = 0, of: int = 1
) -> SourceHead:
    strategy = None if bound_ms is None else EventTimeStrategy("ts", bound_ms)
    made = SourceHead(source, SCHEMA, strategy)
    made.open(context("src", subtask, of), restored)
    return made


@pytest.mark.promise("B1")
def test_a_watermark_is_the_highest_timestamp_minus_the_bound_minus_one() -> None:
    made = head(Script({"0": [[5, 9, 7], [8], [20], [1]]}), bound_ms=3)
    assert made.watermark() is None
    made.poll(100)
    assert made.watermark() == 9 - 3 - 1
    made.poll(100)
    assert made.watermark() is None
    made.poll(100)
    assert made.watermark() == 16


@pytest.mark.promise("B1")
def test_the_slowest_split_holds_the_watermark_and_one_without_rows_holds_it_back_entirely() -> None:
    made = head(Script({"0": [[100], [200], [300]], "1": [None, [10], [50], [60]]}))
    made.poll(100)
    assert made.watermark() is None  # split 1 has shown nothing yet
    made.poll(100)
    made.poll(100)
    assert made.watermark() == 9
    while not made.finished:
        made.poll(100)


@pytest.mark.promise("B2", "B9")
def test_a_split_that_is_quiet_for_the_time_that_is_allowed_holds_back_neither_the_watermark_nor_its_group() -> None:
    made = SourceHead(
        Script({"0": [[100], [200], [300], [400]], "1": [[10], None, [20], [30]]}),
        SCHEMA,
        EventTimeStrategy("ts", 0, idle_ms=50),
    )
    where = context("src")
    made.open(where, None)
    assert isinstance(where.clock, FakeClock)
    for _ in range(4):  # 100, 10, 200, and 300, since the other has nothing when it is its turn
        made.poll(100)
    where.clock.pass_ms(49)
    assert (made.watermark(), made.lowest_ms()) == (9, 9)
    where.clock.pass_ms(1)
    assert (made.watermark(), made.lowest_ms()) == (299, 299)
    made.poll(100)
    assert (made.watermark(), made.lowest_ms()) == (None, 19), "it has given 20, and so it holds the others back again"


@pytest.mark.promise("B1")
def test_a_finished_split_holds_nothing_back() -> None:
    made = head(Script({"0": [[5]], "1": [[100], [200]]}))
    made.poll(1)
    made.poll(1)
    assert made.watermark() == 99


@pytest.mark.promise("B1")
@given(st.lists(st.lists(st.lists(st.integers(-50, 50), min_size=1, max_size=3), max_size=5), min_size=1, max_size=4))
def test_a_watermark_never_goes_back_and_no_row_of_an_ordered_split_is_late(splits: list[list[list[int]]]) -> None:
    script: dict[str, list[list[int] | None]] = {}
    for index, batches in enumerate(splits):
        ordered = iter(sorted(t for batch in batches for t in batch))
        script[str(index)] = [[next(ordered) for _ in batch] for batch in batches]
    made = head(Script(script))
    clock = None
    while not made.finished:
        batch = made.poll(100)
        if batch is not None and clock is not None:
            assert min(batch.column("_event_time").to_pylist()) > clock
        watermark = made.watermark()
        if watermark is not None:
            assert clock is None or watermark > clock
            clock = watermark


def test_splits_take_turns() -> None:
    made = head(Script({"0": [[1], [2]], "1": [[11], None, [12]], "2": [[21]]}), bound_ms=None)
    found = []
    while not made.finished:
        batch = made.poll(100)
        found += batch.column("ts").to_pylist() if batch is not None else []
    assert found == [1, 11, 21, 2, 12]


def test_the_splits_are_dealt_out_so_that_each_has_one_owner() -> None:
    splits = [str(n) for n in range(7)]
    for parallelism in (1, 2, 3, 7):
        dealt = [split for subtask in range(parallelism) for split in assigned(splits, subtask, parallelism)]
        assert sorted(dealt) == splits


@pytest.mark.promise("D7")
def test_positions_and_watermarks_are_found_again_at_another_parallelism() -> None:
    script: dict[str, list[list[int] | None]] = {str(s): [[10 * s + n] for n in range(4)] for s in range(3)}
    first = head(Script(script))
    for _ in range(4):
        first.poll(1)
    snapshot = first.snapshot(1)
    assert snapshot.inline == {
        "splits": {
            "0": {"position": 2, "seen_ms": 1},
            "1": {"position": 1, "seen_ms": 10},
            "2": {"position": 1, "seen_ms": 20},
        },
        "finished": {},
        "watermark": -(2**63),
    }
    found = []
    for subtask in range(2):
        again = head(Script(script), restored=RestoredState([snapshot.inline], []), subtask=subtask, of=2)
        while not again.finished:
            batch = again.poll(1)
            assert batch is not None
            found += batch.column("ts").to_pylist()
    assert sorted(found) == [2, 3, 11, 12, 13, 21, 22, 23]


@pytest.mark.promise("D7")
def test_what_discoveries_remember_is_in_the_snapshot_and_comes_back_from_all_subtasks() -> None:
    class Remembering(Dealt):
        @property
        def state(self) -> list[str]:
            return ["a"]

    class Asking(Script):
        def discovery(self, context: SourceContext, known: Sequence[str]) -> Discovery:
            self.discovered = context.discovered
            return Remembering(())

    inline = head(Asking({})).snapshot(1).inline
    assert inline["discovery"] == ["a"]
    older = {"splits": {}, "finished": {}, "watermark": 4}
    source = Asking({})
    head(source, restored=RestoredState([inline, older], []))
    assert source.discovered == [["a"], None]


def test_a_new_split_begins_at_its_beginning() -> None:
    restored = RestoredState([{"splits": {"0": {"position": 1, "seen_ms": 5}}, "finished": {}, "watermark": 4}], [])
    made = head(Script({"0": [[5]], "1": [[7]]}), restored=restored)
    batch = made.poll(1)
    assert batch is not None and batch.column("ts").to_pylist() == [7]


def test_a_source_that_gives_another_schema_is_told_both() -> None:
    made = head(Script({"0": [[1]]}, pa.schema([("other", pa.int64())])))
    with pytest.raises(
        SchemaMismatch, match=r"source 'src', split '0' gave records of \(other int64\), but the job decl"
    ):
        made.poll(1)


def test_rows_are_counted_and_readers_closed() -> None:
    source = Script({"0": [[1, 2, 3]], "1": [[4]]})
    made = head(source)
    made.poll(100)
    assert made._context.counters == {"source:src": 3}
    made.close()
    assert source.closed == ["0", "1"]


def test_a_digest_of_the_rows_is_kept_if_asked_for_whatever_their_batches() -> None:
    def counters(batches: list[list[int] | None]) -> dict[str, int]:
        made = SourceHead(Script({"0": batches}), SCHEMA, None, digests=True)
        made.open(context("src"), None)
        for _ in batches:
            made.poll(100)
        return made._context.counters

    whole = counters([[1, 2, 3]])
    assert whole == {"source:src": 3, "digest:source:src": digest([pa.array([1, 2, 3])])}
    assert counters([[3], [1, 2]]) == whole
    assert counters([[1, 2, 2]]) != whole


def test_an_idle_source_says_when_its_earliest_split_is_worth_a_look() -> None:
    assert head(Script({"0": [None], "1": [None]})).wakeup_ms == 10.0


# --- event times ---


@pytest.mark.promise("B1")
@pytest.mark.parametrize(
    ("kind", "ticks", "milliseconds"),
    [
        (pa.timestamp("s"), [-2, 3], [-2000, 3000]),
        (pa.timestamp("ms", tz="UTC"), [-2, 3], [-2, 3]),
        (pa.timestamp("us", tz="UTC"), [-1, 1999], [-1, 1]),
        (pa.timestamp("ns"), [-1, 1_999_999], [-1, 1]),
        (pa.int64(), [-2, 3], [-2, 3]),
        (pa.int32(), [-2, 3], [-2, 3]),
        (pa.uint8(), [2, 3], [2, 3]),
    ],
)
def test_event_times_of_any_unit_become_milliseconds_rounded_down(kind, ticks, milliseconds) -> None:
    column = pa.array([0, *ticks, 0], pa.int64()).cast(kind)
    batch = pa.record_batch({"t": column}).slice(1, 2)
    assert event_times(batch, "t", "here").to_pylist() == milliseconds


@pytest.mark.promise("B1")
@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("ms"), pa.timestamp("s"), pa.int64(), pa.int32()])
def test_a_null_timestamp_is_no_event_time_and_moves_no_watermark(kind: pa.DataType) -> None:
    batch = pa.record_batch({"t": pa.array([None, 7_000, None, 2_000], pa.int64()).cast(kind)})
    times = event_times(batch, "t", "here")
    assert times.is_null().to_pylist() == [True, False, True, False]
    assert latest(times) == times[1].as_py()
    assert latest(times.slice(0, 1)) is None and latest(times.slice(0, 0)) is None


@pytest.mark.promise("B1")
def test_a_source_with_null_timestamps_goes_on_with_the_others() -> None:
    made = head(Script({"0": [[None], [None, 9], [None]]}))  # type: ignore[list-item]
    assert [made.poll(100) is not None and made.watermark() for _ in range(3)] == [None, 8, None]


def test_event_times_replace_those_that_a_batch_has() -> None:
    batch = with_event_times(
        pa.record_batch({"_event_time": [1], "t": [2]}), event_times(pa.record_batch({"t": [2]}), "t", "here")
    )
    assert batch.to_pydict() == {"t": [2], "_event_time": [2]}


@pytest.mark.promise("B1", "B3")
def test_an_assigning_operator_makes_watermarks_behind_its_rows_and_swallows_those_from_before() -> None:
    operator = AssignTimestamps(EventTimeStrategy("ts", 2))
    operator.open(context("assign"), None)
    out = Collected()
    for rows in ([10], [8], [], [20]):
        operator.process(pa.record_batch({"ts": pa.array(rows, pa.int64())}), out)
    operator.on_watermark(15, out)
    operator.on_watermark(MAX_WATERMARK, out)
    kinds = [event if isinstance(event, int) else event.column("_event_time").to_pylist() for event in out.events]
    assert kinds == [[10], 7, [8], [20], 17, MAX_WATERMARK]


# --- splits that turn up while it runs ---


class Found(Discovery):
    """What the script says was found, one list a poll."""

    def __init__(self, looks: list[list[str]], ends: bool) -> None:
        self.looks, self.ends, self.looked = looks, ends, False

    def poll(self) -> Sequence[str]:
        if not self.looks:
            return ()
        self.looked = True
        return self.looks.pop(0)

    @property
    def ready(self) -> bool:
        return self.looked

    @property
    def finished(self) -> bool:
        return self.ends and not self.looks

    @property
    def wakeup_ms(self) -> float:
        return 7.0


class Growing(Script):
    """Reads two splits at a time; `looks`: which splits turn up when."""

    open_splits = 2

    def __init__(self, looks: list[list[str]], splits: dict[str, list[list[int] | None]], ends: bool = False) -> None:
        super().__init__(splits)
        self.found = Found(looks, ends)
        self.known: Sequence[str] = ()

    def discovery(self, context: SourceContext, known: Sequence[str]) -> Discovery:
        self.known = known
        return self.found


def run_until_idle(made: SourceHead) -> list[int | list[int]]:
    """Rows and watermarks in their order."""
    seen: list[int | list[int]] = []
    for _ in range(50):
        batch = made.poll(100)
        if batch is not None:
            seen.append(batch.column("ts").to_pylist())
        if (watermark := made.watermark()) is not None:
            seen.append(watermark)
        if made.idle or made.finished:
            break
    return seen


@pytest.mark.promise("B1", "G1")
def test_a_split_that_is_known_and_not_begun_holds_the_watermark_back() -> None:
    """Four splits, two are read at a time; the last has the oldest row, and it is not late."""
    source = Growing(
        [["0", "1", "2", "3"]], {"0": [[50]], "1": [[60]], "2": [[70], [80]], "3": [[10], [90]]}, ends=True
    )
    made = head(source)
    assert run_until_idle(made) == [[50], [60], [70], [10], 9, [80], [90]]
    assert made.finished


@pytest.mark.promise("B1", "G1")
def test_a_split_that_turned_up_later_holds_nothing_back_before_it_is_begun() -> None:
    looks = [["0"], ["1", "2", "3"], []]
    made = head(Growing(looks, {"0": [[1], [5], [9], [20]], "1": [[30]], "2": [[40]], "3": [[50]]}))
    assert [event for event in run_until_idle(made) if isinstance(event, int)][-1] == 49
    assert made.idle


@pytest.mark.promise("B1", "G1")
def test_a_split_that_turned_up_later_holds_the_watermark_back_while_it_is_read() -> None:
    """Two splits are read at a time, so split 1 is begun before split 0 is at its end; its rows are not late."""
    made = head(Growing([["0"], ["1"], []], {"0": [[10], [50], [60]], "1": [[5], [20], [70]]}))
    seen = run_until_idle(made)
    late = [
        row
        for place, rows in enumerate(seen)
        if isinstance(rows, list)
        for row in rows
        if row <= max((mark for mark in seen[:place] if isinstance(mark, int)), default=-1)
    ]
    assert late == [] and seen[-1] == 69


@pytest.mark.promise("B2", "G1")
def test_with_nothing_to_read_it_is_idle_behind_the_watermark_of_all_it_has_seen() -> None:
    made = head(Growing([["0"], []], {"0": [[5], [9]]}), bound_ms=2)
    assert not made.idle
    assert run_until_idle(made) == [[5], 2, [9], 6]
    assert made.idle and not made.finished
    assert made.wakeup_ms == 7.0


@pytest.mark.promise("G1", "D7")
def test_of_a_finished_split_the_name_is_kept_so_that_nobody_reads_it_again() -> None:
    splits: dict[str, list[list[int] | None]] = {"0": [[1]], "1": [[2], [3]], "2": [[4]]}
    source = Growing([["0", "1", "2"]], splits)
    made = head(source)
    made.poll(1)
    made.poll(1)
    made.poll(1)
    inline = made.snapshot(1).inline
    assert inline == {
        "splits": {"1": {"position": 1, "seen_ms": 2}, "2": {"position": 1, "seen_ms": 4}},
        "finished": {"0": 1},
        "watermark": -(2**63),
    }
    assert source.closed == ["0"]
    again = Growing([["0", "1", "2"]], splits)
    restored = head(again, restored=RestoredState([inline], []))
    assert sorted(again.known) == ["0", "1", "2"]
    assert [event for event in run_until_idle(restored) if isinstance(event, list)] == [[3]]
    restored.poll(1)
    assert restored.snapshot(1).inline == {"splits": {}, "finished": {"0": 1, "2": 4, "1": 3}, "watermark": 3}


@pytest.mark.promise("B1", "D7", "G1")
def test_the_latest_event_time_of_splits_that_were_let_go_is_found_again() -> None:
    """Splits 0 and 1 are read and closed, then the source waits: its watermark is that of all that it has read."""
    made = head(Growing([["0", "1"], [], []], {"0": [[50]], "1": [[10]]}), bound_ms=2)
    assert run_until_idle(made)[-1] == 47
    made.poll(1)
    inline = made.snapshot(1).inline
    assert not inline["splits"]
    restored = head(Growing([["0", "1"]], {"0": [[50]], "1": [[10]]}), 2, RestoredState([inline], []))
    assert restored.watermark() == 47
    for subtask, split, expected in ((0, "0", 50), (1, "1", 10)):  # at another parallelism each split brings its own
        moved = head(Growing([[split]], {"0": [[50]], "1": [[10]]}), 2, RestoredState([inline], []), subtask, 2)
        assert moved.snapshot(1).inline["finished"] == {split: expected}
        assert moved.watermark() == 47


@pytest.mark.promise("B1", "D7", "G1")
def test_a_restored_source_starts_at_the_watermark_of_its_snapshot() -> None:
    """Split 2 was found later, so it did not hold the watermark back; after a restore all splits are found at once."""
    splits: dict[str, list[list[int] | None]] = {"0": [[5], [9], [20]], "1": [[8], [30]], "2": [[1]]}
    made = head(Growing([["0", "1"], ["2"]], splits))
    for _ in range(3):
        made.poll(1)
        made.watermark()
    inline = made.snapshot(1).inline
    assert inline["watermark"] == 7
    restored = head(Growing([["0", "1", "2"]], splits), restored=RestoredState([inline], []))
    assert restored.watermark() == 7
    assert restored.watermark() is None


@pytest.mark.promise("B1", "D7")
def test_a_source_that_takes_splits_of_two_subtasks_starts_at_the_lower_watermark() -> None:
    def of(split: str, watermark: int) -> dict[str, Any]:
        return {"splits": {split: {"position": 0, "seen_ms": None}}, "finished": {}, "watermark": watermark}

    held = RestoredState([of("0", 40), of("1", 90), of("2", 60)], [])
    script: dict[str, list[list[int] | None]] = {str(split): [[100]] for split in range(3)}
    assert head(Script(script), restored=held, subtask=0, of=2).watermark() == 40  # splits 0 and 2
    assert head(Script(script), restored=held, subtask=1, of=2).watermark() == 90


@pytest.mark.promise("B1", "D7")
def test_an_assigning_operator_does_not_go_back_after_a_restore() -> None:
    def restored(inline: list[dict[str, Any]], subtask: int, of: int) -> list[int]:
        operator = AssignTimestamps(EventTimeStrategy("ts", 2))
        operator.open(context("assign", subtask, of), RestoredState(inline, []))
        out = Collected()
        operator.process(pa.record_batch({"ts": [10]}), out)
        return out.watermarks

    before = AssignTimestamps(EventTimeStrategy("ts", 2))
    before.open(context("assign"), None)
    before.process(pa.record_batch({"ts": [50]}), Collected())
    before.on_watermark(MAX_WATERMARK, Collected())
    inline = before.snapshot(1).inline
    assert inline == {"watermark": 47}
    assert restored([inline], 0, 1) == [47]
    two = [inline, {"watermark": 20}]
    assert restored(two, 0, 2) == [47] and restored(two, 1, 2) == [20]
    assert restored(two, 0, 1) == [20] and restored(two, 1, 3) == [20]  # its records may come from any of the two


def test_a_snapshot_waits_until_the_splits_are_known() -> None:
    made = head(Growing([], {}))
    assert not made.ready and not made.idle and not made.finished


@pytest.mark.promise("H8")
def test_an_author_s_source_that_raises_is_named_with_its_split() -> None:
    head = SourceHead(Script({"0": [[1]], "1": []}), SCHEMA, None)
    head.open(context(uid="numbers"), None)
    head._splits[1].reader._position = -5  # type: ignore[attr-defined]
    head.poll(10)
    with pytest.raises(
        UserFunctionError, match=r"operator 'numbers', subtask 0, split '1', poll\(\): IndexError"
    ) as found:
        head.poll(10)
    assert found.value.fault is Fault.JOB and "in poll" in found.value.raised.traceback


@pytest.mark.promise("H8")
def test_a_defect_of_weir_s_own_source_is_not_its_author_s_fault() -> None:
    source = GeneratorSource(lambda numbers: {"ts": numbers}, 1, 10)
    head = SourceHead(source, SCHEMA, None)
    head.open(context(uid="numbers"), None)
    head._splits[0].reader = None  # type: ignore[assignment]
    with pytest.raises(AttributeError):
        head.snapshot(1)


@pytest.mark.promise("H8")
def test_a_function_of_the_author_s_inside_of_weir_s_source_is() -> None:
    head = SourceHead(GeneratorSource(lambda numbers: 1 / 0, 1, 10), SCHEMA, None)  # type: ignore[arg-type, return-value]
    head.open(context(uid="numbers"), None)
    with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
        head.poll(10)


# --- alignment ---


def aligned(source: FixedSource, drift_ms: int = 10, restored: RestoredState | None = None) -> SourceHead:
    made = SourceHead(source, SCHEMA, EventTimeStrategy("ts", 0, WatermarkAlignment("all", drift_ms, 50)))
    made.open(context("src"), restored)
    return made


def read(made: SourceHead, polls: int) -> list[int]:
    batches = [made.poll(100) for _ in range(polls)]
    return [time for batch in batches if batch is not None for time in batch.column("ts").to_pylist()]


@pytest.mark.promise("B9")
def test_a_split_above_the_limit_is_not_read_and_the_others_are() -> None:
    made = aligned(Script({"0": [[100], [120], [140]], "1": [[5], [6], [7]]}))
    assert made.lowest_ms() == MIN_WATERMARK
    assert read(made, 4) == [100, 5], "without a limit each split is read until it has a watermark"
    assert made.waits() == AlignmentWait("all", 2, 2, None, 10)
    made.limit_ms = 4 + 10
    assert made.lowest_ms() == 4
    assert made.waits() == AlignmentWait("all", 1, 2, 95, 10)
    assert read(made, 3) == [6, 7]
    assert made.lowest_ms() == 99, "a split that was read to its end counts no more"
    assert made.waits() == AlignmentWait("all", 1, 1, 95, 10)
    made.limit_ms = 99 + 10
    assert read(made, 3) == [120] and made.waits() == AlignmentWait("all", 1, 1, 20, 10)
    made.limit_ms = MAX_WATERMARK
    assert read(made, 3) == [140] and made.waits() is None
    assert made.finished and made.lowest_ms() is None


@pytest.mark.promise("B9")
def test_a_split_that_waits_wakes_nobody() -> None:
    made = aligned(Script({"0": [[100], [120]], "1": [[5], [6]]}))
    read(made, 2)
    made.limit_ms = 14
    assert made.wakeup_ms == 20.0, "that of split 1"
    made.limit_ms = MIN_WATERMARK
    assert made.wakeup_ms is None


@pytest.mark.promise("B9")
def test_splits_that_have_not_had_their_turn_do_not_hold_the_group_back() -> None:
    """They could not catch up: the splits before them would wait for them, and they for those."""
    source = Script({"0": [[100], [120]], "1": [[5], [6]], "2": [[1], [2]]})
    source.open_splits = 1
    made = aligned(source)
    assert read(made, 2) == [100] and made.lowest_ms() == 99
    made.limit_ms = 99 + 10
    assert read(made, 1) == [120] and made.lowest_ms() == MIN_WATERMARK, "now split 1 is read, from its beginning"
    assert read(made, 1) == [5]


@pytest.mark.promise("B9", "D7")
def test_a_snapshot_knows_nothing_of_waiting_and_a_restored_split_waits_if_it_is_ahead() -> None:
    made = aligned(Script({"0": [[100], [120]], "1": [[5], [6], [7]]}))
    read(made, 2)
    made.limit_ms = 14
    snapshot = made.snapshot(1).inline
    made.limit_ms = MAX_WATERMARK
    assert made.snapshot(1).inline == snapshot
    again = aligned(Script({"0": [[100], [120]], "1": [[5], [6], [7]]}), restored=RestoredState([snapshot], []))
    assert again.lowest_ms() == 4 and read(again, 3) == [], "both have watermarks, and there is no limit yet"
    again.limit_ms = 14
    assert read(again, 3) == [6, 7]


@pytest.mark.promise("B9")
def test_a_batch_near_the_limit_is_so_small_that_it_hardly_passes_it() -> None:
    """Without this a full batch of a fast split could be hours of event time."""
    source = GeneratorSource(lambda n: {"ts": n * 10}, splits=2, rows=1_000_000)
    source.open_splits = 1
    made = SourceHead(source, SCHEMA, EventTimeStrategy("ts", 0, WatermarkAlignment("all", 5_000, 50)))
    made.open(context("src"), None)
    made.poll(1024)
    made.limit_ms = 40_000
    batch = made.poll(262_144)
    assert batch is not None and 900 < batch.num_rows < 1100
    made.poll(262_144)
    assert 40_000 < (made.lowest_ms() or 0) <= 40_000 + 64 * 20
    assert made.poll(262_144) is None
    source.open_splits = 2
    batch = made.poll(262_144)
    assert batch is not None and batch.num_rows == 5_000 / 20, "a new split is judged by the one before it"
