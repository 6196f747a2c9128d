"""Answers the question about an epoch's rows: reads the files, and evaluates a SQL condition or asks a judge.

Runs in the process of the gates (`gate_child.py`), and within a test of `engine.testing`.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.core.errors import WeirError
from engine.core.gates import SQL, Found, Judge, judged_by_sql
from engine.protocol.gate import GateAnswer, GateQuestion

Read = Callable[[str], bytes]

_judges: dict[str, Judge] = {}


def answer(question: GateQuestion, read: Read) -> GateAnswer:
    """Answers a question. Whatever goes wrong is in the answer: it then says nothing about the rows."""
    began = time.perf_counter()
    try:
        tables = [pq.ParquetFile(pa.BufferReader(read(path))).read() for path in question.files]
        rows = pa.concat_tables(tables)
        by_sql = question.kind == SQL
        found = [judged_by_sql(question.asks, rows)] if by_sql else judge_at(question.asks).judge(rows)
        sizes = [table.num_rows for table in tables]
        refused, named = _refused(question.files, sizes, found)
    except Exception as error:
        return GateAnswer(question.number, error=f"{type(error).__name__}: {error}")
    took_ms = round((time.perf_counter() - began) * 1000, 1)
    return GateAnswer(question.number, rows.num_rows, refused, [one.expected for one in found], named, took_ms)


def judge_at(path: str) -> Judge:
    """Returns the judge that the function at this import path makes; it is made once."""
    if path not in _judges:
        module, _, name = path.partition(":")
        made = getattr(importlib.import_module(module), name)()
        if not callable(getattr(made, "judge", None)):
            raise WeirError(f"{path} returns {type(made).__name__}, which has no method judge(rows)")
        _judges[path] = made
    return _judges[path]


def _refused(files: Sequence[str], sizes: Sequence[int], found: Sequence[Found]) -> tuple[int, dict[str, list[int]]]:
    """Returns how many rows do not meet some expectation, and which, by file. All, if one is about all together."""
    total = sum(sizes)
    failed = [one for one in found if not one.expected.met]
    bad = np.zeros(total, bool)
    for one in failed:
        if not one.rows:  # it blames no row, so none of them has met it
            return total, {}
        bad[list(one.rows)] = True
    ends = np.cumsum(sizes)
    parts = np.split(bad, ends[:-1]) if len(sizes) else []
    named = {path: np.flatnonzero(part).tolist() for path, part in zip(files, parts, strict=True) if part.any()}
    return int(bad.sum()), named
