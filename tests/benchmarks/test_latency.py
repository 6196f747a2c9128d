"""Latencies beside Flink's: their unit, which way the ratio points, and a machine that can't compile Java."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import latency
from benchmarks.peers import environments


def test_flink_s_latencies_are_microseconds_in_a_file_per_subtask_and_checkpoint(tmp_path: Path) -> None:
    for name, values in (("0000-000000", [1500, 250]), ("0000-000001", [3000]), ("0001-000000", [20_000])):
        np.array(values, dtype="<i8").tofile(tmp_path / f"{name}.latencies")
    (tmp_path / "log").write_text("what Flink said")
    assert latency.flink_latencies(tmp_path).tolist() == [1.5, 0.25, 3.0, 20.0]


def test_a_flink_that_recorded_nothing_is_an_error_and_no_latency_of_zero(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="recorded no latency"):
        latency.flink_latencies(tmp_path)


@pytest.mark.parametrize(("theirs", "ratio", "reached"), [(30.0, 3.0, True), (5.0, 0.5, False), (10.0, 1.0, True)])
def test_the_ratio_says_how_many_times_as_good_as_flink_weir_is(theirs: float, ratio: float, reached: bool) -> None:
    said: list[str] = []
    result = latency.flink_result(np.full(100, 10.0), np.full(100, theirs), "ours", said.append)
    assert (result.peer, result.unit, result.weir, result.peer_value) == ("flink", "ms", 10.0, theirs)
    assert (result.ratio, result.reached) == (pytest.approx(ratio), reached)
    spread = f"p50 {theirs:.1f} ms, p99 {theirs:.1f} ms, p99.9 {theirs:.1f} ms, max {theirs:.1f} ms"
    assert spread in result.note and spread in said[0]


def test_without_a_java_compiler_flink_is_left_out_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments.shutil, "which", lambda name: None)
    said: list[str] = []
    assert latency._beside_flink(said.append, 10_000, 1, np.ones(1), "ours") == []
    assert len(said) == 1 and "no javac on PATH" in said[0]
