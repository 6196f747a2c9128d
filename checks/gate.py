"""Great Expectations as a commit gate: a suite decides on each epoch's rows before readers see them.

    # assets/pageviews/gate.py
    from checks.gate import SuiteJudge, gxe

    def pv() -> SuiteJudge:
        return SuiteJudge(gxe.ExpectColumnValuesToBeBetween(column="pv", min_value=0))

    # assets/pageviews/job.py
    TableSink("pv", gate=Gate.judge("assets.pageviews.gate:pv"))

The suite runs in the warm process of the job's gates, on pandas: the rows of an epoch need no Spark, which would take
seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from checks._gx import PandasSuite, gxe
from engine.core.gates import EXAMPLES, Found, shortened
from engine.protocol.gate import Expected

__all__ = ["SuiteJudge", "gxe"]


class SuiteJudge:
    """Judges rows by expectations of Great Expectations.

    A row is refused if an expectation about single rows names it. If one about all rows together fails (a count, a
    mean), all are refused. Great Expectations ignores NULL unless an expectation is about it.
    """

    def __init__(self, *expectations: Any) -> None:
        if not expectations:
            raise ValueError("a suite without expectations lets everything pass: name at least one")
        self._suite = PandasSuite(expectations)

    def judge(self, rows: pa.Table) -> list[Found]:
        # Integers with NULLs would become floats, which are wrong above 2**53.
        frame = rows.to_pandas(integer_object_nulls=True)
        results = self._suite.validate(frame)
        if errors := [result.error for result in results if result.error]:
            raise RuntimeError("; ".join(dict.fromkeys(errors)))
        if len(results) != len(self._suite):
            raise RuntimeError(f"{len(results)} of {len(self._suite)} expectations were evaluated")
        return [self._found(rows, result.name, result.met, result.unexpected, result.observed) for result in results]

    def _found(self, rows: pa.Table, name: str, met: bool, unexpected: Sequence[int] | None, observed: str) -> Found:
        if met:
            return Found(Expected(name, True), [])
        if unexpected is None:
            return Found(Expected(name, False, rows.num_rows, f"observed {observed}"))
        shown = "; ".join(shortened(row) for row in rows.take(unexpected[:EXAMPLES]).to_pylist())
        return Found(Expected(name, False, len(unexpected), shown), list(unexpected))
