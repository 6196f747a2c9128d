"""Reads the tables all the time, and checks every read against what the job should have written.

The reader follows Spark's file-sink log by itself, without Weir's code. An epoch is a consistent cut of the stream, so
a read that sees whole epochs sees the first records of each split without a gap, the numbers of each key from 1
without a gap, and every window for all keys. A read that misses one file of an epoch can't.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from pathlib import Path
from urllib.parse import unquote, urlsplit

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.chaos.job import KEYS, SPLITS, make

PAUSE_S = 0.2


class Table:
    """One table. Published files never change, so each is read once; a folded file may replace several others."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._parts: dict[str, pa.Table] = {}
        self.folds = 0
        """Reads in which files were replaced by others."""

    def read(self) -> pa.Table | None:
        """Returns all published rows; None before the first epoch. Raises AssertionError if the log is not whole."""
        names = self._published()
        if names is None:
            return None
        assert len(names) == len(set(names)), f"{self._folder.name}: the log names a file twice"
        before = _rows(self._parts)
        self.folds += not set(self._parts) <= set(names)
        self._parts = {name: self._parts[name] if name in self._parts else self._file(name) for name in names}
        gone = before - _rows(self._parts)
        assert gone <= 0, f"{self._folder.name}: {gone} published rows are not in the table any more"
        return pa.concat_tables(self._parts.values()) if self._parts else None

    def _file(self, name: str) -> pa.Table:
        return pq.read_table(self._folder / name)

    def _published(self) -> list[str] | None:
        log = self._folder / "_spark_metadata"
        if not log.is_dir():
            return None
        found = {file.name.split(".")[0]: file for file in log.iterdir() if file.name[0].isdigit()}
        if not found:
            return None
        newest = max(map(int, found))
        compacts = [int(number) for number, file in found.items() if file.suffix == ".compact"]
        names = []
        for number in range(max(compacts, default=0), newest + 1):
            assert str(number) in found, f"{self._folder.name}: the log has no record {number}, but {newest}"
            version, *lines = found[str(number)].read_text().split("\n")
            assert version == "v1"
            names += [Path(unquote(urlsplit(json.loads(line)["path"]).path)).name for line in lines]
        return names


class Reader:
    """Reads both tables on a thread of its own. `wrong` has a sentence for each violation."""

    def __init__(self, numbered: Path, sums: Path) -> None:
        self._numbered = Table(numbered)
        self._sums = Table(sums)
        self.wrong: list[str] = []
        self.reads = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reader", daemon=True)

    @property
    def folds(self) -> int:
        return self._numbered.folds + self._sums.folds

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(PAUSE_S):
            for check in (self._check_numbered, self._check_sums):
                try:
                    check()
                except (AssertionError, OSError, pa.ArrowException) as error:
                    self.wrong.append(f"read {self.reads}: {type(error).__name__}: {error}")
            self.reads += 1

    def _check_numbered(self) -> None:
        rows = self._numbered.read()
        if rows is None or not rows.num_rows:
            return
        n = rows.column("n").to_numpy()
        for split in range(SPLITS):
            mine = n[n % SPLITS == split]
            assert not len(mine) or mine.max() == split + SPLITS * (len(mine) - 1), (
                f"numbered: split {split} has {len(mine)} records up to {mine.max()}, which is not a whole epoch"
            )
        counts, tops = _per_key(rows)
        assert np.array_equal(counts, tops), "numbered: the numbers of a key have a gap"

    def _check_sums(self) -> None:
        rows = self._sums.read()
        if rows is None or not rows.num_rows:
            return
        windows, keys = np.unique(seconds_of(rows), return_counts=True)
        assert np.array_equal(windows, np.arange(len(windows))), "sums: a window is missing between others"
        assert (keys == KEYS).all(), "sums: a window does not have all its keys, or one of them twice"

    def verdict(self, rows: int) -> list[str]:
        """Compares the finished tables with the truth, row by row. Returns a sentence for each difference."""
        wrong = []
        got = self._numbered.read()
        n = np.zeros(0, np.int64) if got is None else got.column("n").to_numpy()
        times = np.bincount(n, minlength=rows)
        lost, doubled = int((times == 0).sum()), int((times > 1).sum())
        if lost or doubled or len(times) > rows:
            wrong.append(f"numbered: lost {lost}, doubled {doubled}, invented {len(times) - rows}")
        elif got is not None:
            truth = make(np.arange(rows))["key"]
            order = np.argsort(n)
            if not np.array_equal(got.column("key").to_numpy()[order], truth):
                wrong.append("numbered: a record has another key")
            pairs = got.column("key").to_numpy() * (rows + 1) + got.column("number").to_numpy()
            counts, tops = _per_key(got)
            if len(np.unique(pairs)) != rows or not np.array_equal(counts, tops):
                wrong.append("numbered: the numbers of a key have a gap or a repetition")
        sums = self._sums.read()
        if sums is None or windows_of(sums) != windows_due(np.arange(rows)):
            wrong.append("sums: the windows are not those of the truth")
        return wrong


def _rows(parts: dict[str, pa.Table]) -> int:
    return sum(part.num_rows for part in parts.values())


def _per_key(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Returns how many records each key has, and its highest number."""
    key, number = rows.column("key").to_numpy(), rows.column("number").to_numpy()
    tops = np.zeros(KEYS, np.int64)
    np.maximum.at(tops, key, number)
    return np.bincount(key, minlength=KEYS), tops


def seconds_of(rows: pa.Table) -> np.ndarray:
    starts = rows.column("window_start").cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
    return np.asarray(starts // 1_000_000)


def windows_of(rows: pa.Table) -> Counter[tuple[int, ...]]:
    columns = [seconds_of(rows), *(rows.column(name).to_numpy() for name in ("key", "rows", "sum"))]
    return Counter(zip(*(column.tolist() for column in columns), strict=True))


def windows_due(n: np.ndarray) -> Counter[tuple[int, ...]]:
    """Returns the windows of these records."""
    columns = make(n)
    table = pa.table({"second": columns["ts"] // 1_000_000, "key": columns["key"], "value": columns["value"]})
    grouped = table.group_by(["second", "key"]).aggregate([([], "count_all"), ("value", "sum")])
    names = ("second", "key", "count_all", "value_sum")
    return Counter(zip(*(grouped.column(name).to_pylist() for name in names), strict=True))
