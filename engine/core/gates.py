"""Gates: what decides on an epoch's rows before they are published, and what becomes of those that it refuses.

The engine evaluates SQL conditions itself. Anything else is a `Judge`, found by its import path and run in a process of
its own that stays warm; the engine knows nothing of what it imports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from engine.core.durations import Duration, to_ms
from engine.core.errors import JobError
from engine.protocol.gate import Expected, OnFail, OnTimeout

SQL, JUDGE = "sql", "judge"


@dataclass(frozen=True)
class Found:
    """What a judge says of one expectation. `rows`: the numbers of the rows that do not meet it.

    None: the expectation is about all rows together.
    """

    expected: Expected
    rows: list[int] | None = None


class Judge(Protocol):
    """Decides on the rows of an epoch. Called in a process of its own, one epoch at a time."""

    def judge(self, rows: pa.Table) -> list[Found]:
        """Returns one result per expectation. Raises if it can't say: the epoch then follows `on_timeout`."""


@dataclass(frozen=True)
class Gate:
    """Stands before the table of a sink. Made by `Gate.sql` or `Gate.judge`."""

    kind: str
    asks: str
    on_fail: OnFail
    on_timeout: OnTimeout
    timeout_ms: float

    @classmethod
    def sql(
        cls, condition: str, *, on_fail: str = "hold", on_timeout: str = "hold", timeout: Duration = "1 min"
    ) -> Gate:
        """Lets rows pass for which this SQL condition is true: `Gate.sql("pv >= 0 AND app_id IS NOT NULL")`.

        A row for which it is NULL is refused. A condition of aggregates, such as `"count(*) < 1000000"`, is about all
        rows of the epoch together.
        """
        return cls._made(SQL, condition, on_fail, on_timeout, timeout)

    @classmethod
    def judge(cls, path: str, *, on_fail: str = "hold", on_timeout: str = "hold", timeout: Duration = "1 min") -> Gate:
        """Asks the `Judge` that the function at this import path returns: `Gate.judge("assets.pageviews.gate:pv")`."""
        module, colon, name = path.partition(":")
        if not (module and colon and name):
            raise ValueError(f"{path!r} names no judge: write MODULE:FUNCTION, as in 'assets.pageviews.gate:pv'")
        return cls._made(JUDGE, path, on_fail, on_timeout, timeout)

    def check(self, schema: pa.Schema) -> None:
        """Raises a JobError if the condition can't be evaluated on rows of this schema. A judge is not asked."""
        if self.kind != SQL:
            return
        try:
            judged_by_sql(self.asks, schema.empty_table())
        except Exception as error:
            said = str(error).partition("\n")[0]
            columns = ", ".join(schema.names)
            raise JobError(
                f"the gate {self.asks!r} can't be evaluated: {said}. Write a condition of the columns {columns}"
            ) from error

    @classmethod
    def _made(cls, kind: str, asks: str, on_fail: str, on_timeout: str, timeout: Duration) -> Gate:
        timeout_ms = to_ms(timeout, "timeout")
        if not asks.strip():
            raise ValueError("a gate needs a condition, as in Gate.sql('pv >= 0')")
        if timeout_ms <= 0:
            raise ValueError(f"timeout={timeout!r}: a gate needs time to answer; write a duration such as '30 s'")
        for name, value, known in (("on_fail", on_fail, OnFail), ("on_timeout", on_timeout, OnTimeout)):
            if value not in [one.value for one in known]:
                choices = ", ".join(repr(one.value) for one in known)
                raise ValueError(f"{name}={value!r} is no policy of a gate: choose one of {choices}")
        return cls(kind, asks, OnFail(on_fail), OnTimeout(on_timeout), timeout_ms)


EXAMPLES = 3
"""So many refused rows are shown."""
TEXT_LENGTH = 300


def shortened(row: dict[str, Any]) -> str:
    """Returns a row as text. It goes into manifest, history and status: a row of megabytes must not."""
    text = str(row)
    return text if len(text) <= TEXT_LENGTH else f"{text[:TEXT_LENGTH]} …"


def judged_by_sql(condition: str, rows: pa.Table) -> Found:
    """Evaluates a SQL condition. Its rows are refused where it is not true; one of aggregates is about all of them."""
    import polars as pl

    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    told = frame.select(pl.sql_expr(condition).alias("told"))["told"]
    if told.dtype != pl.Boolean:
        raise ValueError(f"{condition!r} is neither true nor false, but of type {told.dtype}")
    told = told.fill_null(False)
    if len(told) != frame.height:  # one value for all rows
        return Found(Expected(condition, bool(told.all()), 0 if told.all() else frame.height))
    bad = (~told).arg_true().to_list()
    shown = "; ".join(shortened(row) for row in frame[bad[:EXAMPLES]].to_dicts())
    return Found(Expected(condition, not bad, len(bad), shown), bad)
