"""Rows of two versions are compared up to the event time that both have passed (H7)."""

from __future__ import annotations

import msgspec
import pytest

from engine.api import (
    CEP,
    DataStream,
    Pattern,
    ProcessWindowFunction,
    TumblingEventTimeWindows,
    WatermarkStrategy,
    count,
)
from engine.connectors.table import TableSink
from engine.graph.row_identity import RowIdentity, row_identity
from engine.protocol.manifest import Manifest
from tests.graph.test_compatibility import Build, graph, taken_by


def timed(views: DataStream) -> DataStream:
    return views.assign_timestamps_and_watermarks(WatermarkStrategy.for_monotonous_timestamps().with_timestamps("ts"))


def windows(*columns: str, lateness: int = 0) -> Build:
    def build(views: DataStream) -> None:
        windowed = timed(views).key_by("app").window(TumblingEventTimeWindows.of("10 s"))
        pv = windowed.allowed_lateness(lateness).aggregate(pv=count(), uid="pv")
        (pv.select(*columns) if columns else pv).sink_to(TableSink("out"), uid="out")

    return build


def with_inline(manifest: Manifest, *inline: dict[str, dict[str, object]]) -> Manifest:
    (state,) = manifest.subtasks
    return msgspec.structs.replace(manifest, subtasks=[msgspec.structs.replace(state, inline=one) for one in inline])


@pytest.mark.promise("H7")
def test_results_of_windows_are_told_apart_by_key_and_window_and_bounded_by_the_clocks_of_the_windows() -> None:
    job = graph(windows())
    identity = row_identity(job, "out")
    assert identity == RowIdentity(("app", "window_start"), "window_end", windows="pv")
    clocks = ({"pv": {"watermarks": [[0, 64, 5000], [64, 96, 7000]]}}, {"pv": {"watermarks": [[96, 128, 6000]]}})
    manifest = with_inline(taken_by(job), *clocks)
    assert (identity.begun(manifest), identity.passed(manifest)) == (7000, 5000)


@pytest.mark.promise("H7")
def test_records_are_bounded_by_the_watermark_of_their_source_and_begin_behind_the_latest_that_was_read() -> None:
    job = graph(lambda views: timed(views).select("app", "ts").sink_to(TableSink("out"), uid="out"))
    identity = row_identity(job, "out")
    assert identity == RowIdentity((), "ts", source="views")
    read = {"0": {"position": 9, "seen_ms": 800}, "1": {"position": 9, "seen_ms": None}}
    inline = ({"views": {"splits": read, "finished": {"2": 950}, "watermark": 700}},)
    manifest = with_inline(taken_by(job), *inline)
    assert (identity.begun(manifest), identity.passed(manifest)) == (950, 700)


@pytest.mark.promise("H7")
def test_rows_without_event_time_in_their_columns_can_not_be_compared() -> None:
    assert row_identity(graph(lambda views: views.sink_to(TableSink("out"), uid="out")), "out") is None
    assert row_identity(graph(windows("app", "pv")), "out") is None
    assert row_identity(graph(windows(lateness=5)), "out") is None  # its windows get corrected results after their end
    dropped = graph(lambda views: timed(views).select("app").sink_to(TableSink("out"), uid="out"))
    assert row_identity(dropped, "out") is None


class Twice(ProcessWindowFunction):
    def process(self, key, context, elements):
        bounds = {"window_start": context.window().start, "window_end": context.window().end}
        yield from ({"app": key[0], **bounds, "n": n} for n in range(2))


@pytest.mark.promise("B5", "H7")
def test_results_of_windows_with_functions_can_not_be_compared_because_a_window_may_have_several() -> None:
    def build(views: DataStream) -> None:
        windowed = timed(views).key_by("app").window(TumblingEventTimeWindows.of("10 s"))
        schema = "app string, window_start long, window_end long, n long"
        windowed.process(Twice(), uid="pv", schema=schema).sink_to(TableSink("out"), uid="out")

    assert row_identity(graph(build), "out") is None


@pytest.mark.promise("A8", "H7")
def test_pairs_of_a_join_can_not_be_compared_because_they_come_later_than_their_first_record() -> None:
    def joined(views: DataStream) -> None:
        keyed = timed(views).key_by("app")
        pairs = keyed.interval_join(keyed).between(0, "1 h").select("app", "ts", uid="joined")
        pairs.sink_to(TableSink("out"), uid="out")

    assert row_identity(graph(joined), "out") is None


def test_a_snapshot_before_the_first_watermark_has_passed_nothing() -> None:
    manifest = with_inline(taken_by(graph(windows())), {})
    identity = row_identity(graph(windows()), "out")
    assert identity is not None and identity.passed(manifest) is None and identity.begun(manifest) is None


@pytest.mark.promise("A11", "H7")
def test_matches_of_a_pattern_can_not_be_compared_because_they_come_later_than_their_first_record() -> None:
    def found(views: DataStream) -> None:
        two = Pattern.begin("one").next("two")
        matches = CEP.pattern(timed(views).key_by("app"), two).select(lambda match: match["one"][0], uid="found")
        matches.select("app", "ts").sink_to(TableSink("out"), uid="out")

    assert row_identity(graph(found), "out") is None
