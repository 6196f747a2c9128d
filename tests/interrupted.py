"""Runs a job as it is, with checkpoints and crashes at given records of its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from engine.api import FixedDelay, StreamEnvironment
from engine.core.sources import FixedSource, SourceContext, SplitReader
from engine.testing import Checkpoint, Crash, LocalRun, _Killed

Fault = Checkpoint | Crash
Marks = Mapping[str, Sequence[tuple[int, Fault]]]
"""By split: after how many of its records what happens, in order."""
ROWS_AT_ONCE = 61
"""Small batches, so that splits take turns and watermarks come often, also between records that are out of order."""


class Interrupted(FixedSource):
    """Another source, with faults between its records."""

    def __init__(self, source: FixedSource, marks: Marks) -> None:
        self._source = source
        self._marks = marks

    @property
    def positions(self) -> str:
        return self._source.positions

    def splits(self) -> Sequence[str]:
        return self._source.splits()

    def reader(self, split: str, position: Any, context: SourceContext) -> SplitReader:
        run = context.clock
        assert isinstance(run, LocalRun), "faults happen only in engine.testing.run"
        return _Reader(self._source.reader(split, position, context), self._marks.get(split, ()), run)


class _Reader(SplitReader):
    def __init__(self, source: SplitReader, marks: Sequence[tuple[int, Fault]], run: LocalRun) -> None:
        self._source = source
        self._marks = marks
        self._run = run

    def poll(self, max_rows: int) -> pa.RecordBatch | None:
        waiting = self._waiting()
        if not waiting:
            return self._source.poll(min(max_rows, ROWS_AT_ONCE))
        after, fault = waiting[0]
        if self.position < after:
            return self._source.poll(min(max_rows, ROWS_AT_ONCE, after - self.position))
        if isinstance(fault, Crash):
            fault.done = True
            raise _Killed
        self._run.want_checkpoint(fault)
        return None

    def _waiting(self) -> list[tuple[int, Fault]]:
        """Returns the faults that are still to come. A restored reader is past those before its position."""
        return [(after, fault) for after, fault in self._marks if not fault.done and self.position <= after]

    @property
    def position(self) -> int:
        return int(self._source.position)

    @property
    def finished(self) -> bool:
        return self._source.finished and not self._waiting()

    @property
    def wakeup_ms(self) -> float | None:
        return self._source.wakeup_ms


def interrupted(job: Callable[[StreamEnvironment], None], marks: Marks) -> Callable[[StreamEnvironment], None]:
    """Returns the job with faults in its source. Every restart comes at once, and there may be many."""

    def with_faults(env: StreamEnvironment) -> None:
        from_source = env.from_source
        env.from_source = lambda source, *of, **named: from_source(Interrupted(source, marks), *of, **named)  # type: ignore[method-assign]
        job(env)
        env.set_restart_strategy(FixedDelay(attempts=20, delay_ms=5))

    return with_faults
