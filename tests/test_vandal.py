"""The judge of the savepoints' vandal notices what it is there for, and its gate holds one call."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import urllib3

from tests.chaos.gate import BucketGate, Call, DirectoryGate, wait_standing
from tests.chaos.job import KEYS, SPLITS, make
from tests.chaos.reader import windows_due
from tests.chaos.savepoint_judge import wrong_in
from tests.servers.faulty import Fault, FaultyProxy

ROWS = 9_000
STANDING = Path(__file__).parent / "chaos" / "standing"


def numbered(first: int = 0, end: int = ROWS) -> pa.Table:
    """Returns what a job writes that has read the records from `first` on, which is the same in each split."""
    n = np.arange(ROWS)
    key = make(n)["key"]
    number = np.zeros(ROWS, np.int64)
    for one in range(KEYS):
        number[key == one] = 1 + np.arange((key == one).sum())
    return pa.table({"n": n, "key": key, "number": number}).slice(first, end - first)


def sums(first: int = 0, end: int = ROWS // 1_000) -> pa.Table:
    rows = sorted(windows_due(np.arange(first * 1_000, end * 1_000)))
    second, key, count, value = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    start = pa.array(second * 1_000_000).cast(pa.timestamp("us"))
    return pa.table({"window_start": start, "key": key, "rows": count, "sum": value})


def without(table: pa.Table, row: int) -> pa.Table:
    return pa.concat_tables([table.slice(0, row), table.slice(row + 1)])


def twice(table: pa.Table, row: int) -> pa.Table:
    return pa.concat_tables([table, table.slice(row, 1)])


def test_right_tables_have_nothing_wrong() -> None:
    assert wrong_in(numbered(), sums(), ROWS, begun=False, whole=True) == []
    assert wrong_in(numbered(end=4_500), sums(end=4), ROWS, begun=False, whole=False) == []
    assert wrong_in(numbered(4_500), sums(4), ROWS, begun=True, whole=True) == []
    assert wrong_in(numbered(ROWS), None, ROWS, begun=True, whole=True) == []


@pytest.mark.parametrize("break_it", [without, twice])
def test_a_lost_and_a_doubled_row_are_noticed(break_it: object) -> None:
    assert callable(break_it)
    for first, begun in ((0, False), (4_500, True)):
        rows, windows = numbered(first), sums(first // 1_000)
        assert wrong_in(break_it(rows, 100), windows, ROWS, begun=begun, whole=True)
        assert wrong_in(rows, break_it(windows, 70), ROWS, begun=begun, whole=True)


def test_the_last_rows_may_be_missing_only_where_the_job_was_stopped() -> None:
    assert "lost 1" in wrong_in(numbered(end=ROWS - 1), sums(), ROWS, begun=False, whole=True)[0]
    assert wrong_in(numbered(), sums(end=8), ROWS, begun=False, whole=True) == ["sums: end with window 7 of 9"]


def test_windows_that_a_drain_did_not_fire_are_noticed() -> None:
    assert wrong_in(numbered(end=4_000), sums(end=4), ROWS, drained=True) == []
    assert wrong_in(numbered(end=4_500), sums(end=4), ROWS, drained=True)[0].startswith("sums: not all windows")


def test_state_that_is_not_that_of_the_cut_is_noticed() -> None:
    rows = numbered(4_500)
    ahead = rows.set_column(2, "number", pa.array(rows.column("number").to_numpy() + 1))
    assert "do not go on from there" in wrong_in(ahead, sums(4), ROWS, begun=True, whole=True)[0]
    assert wrong_in(rows, sums(5), ROWS, begun=True, whole=True) == [
        "sums: begin with window 5, and the cut is in window 4"
    ]
    skipped = rows.filter(pa.array(rows.column("n").to_numpy() >= 4_500 + SPLITS))  # every split lost its first record
    assert wrong_in(skipped, sums(4), ROWS, begun=True, whole=True) == []  # this can't be told from a later cut


def test_a_process_stands_before_the_call_until_the_gate_is_lifted(tmp_path: Path) -> None:
    gate = DirectoryGate(tmp_path / "gate", tmp_path)
    gate.close(Call("link", r"/head$", after="sealed", passing=1))
    (tmp_path / "file").touch()
    code = (
        "import os; os.link('file', 'x-head') if 0 else None\n"
        "for name in ('other', 'a/head', 'b/head', 'c/head'):\n"
        "    os.makedirs(os.path.dirname(name) or '.', exist_ok=True); os.link('file', os.path.abspath(name))\n"
    )
    (tmp_path / "sealed").touch()
    environ = os.environ | {"PYTHONPATH": str(STANDING), "WEIR_CHAOS_GATE": str(gate.file)}
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=environ) as linking:
        assert wait_standing(gate, 60) == linking.pid
        assert (tmp_path / "a/head").exists() and not (tmp_path / "b/head").exists()
        gate.lift()
        assert linking.wait(60) == 0
    assert (tmp_path / "c/head").exists()


def test_a_request_stands_in_the_proxy_until_the_gate_is_lifted() -> None:
    server, proxy = FaultyProxy(""), FaultyProxy("")
    server.decide = lambda method, address: Fault.REFUSE
    with server.running() as proxy.server:
        gate = BucketGate(proxy)
        answered = threading.Event()
        with proxy.running() as address:
            gate.close(Call("open", r"/x/"))

            def put() -> None:
                urllib3.request("PUT", f"{address}/x/head", body=b"", retries=False)
                answered.set()

            sending = threading.Thread(target=put)
            sending.start()
            assert wait_standing(gate, 60) == 0
            assert not answered.is_set() and server.requests == []
            gate.lift()
            sending.join(60)
            assert answered.is_set()
