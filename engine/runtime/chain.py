"""Chains the operators of a vertex: a batch goes from one to the next by a plain call, without serialisation (A10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from engine.core.errors import NotTaken
from engine.core.nearest import nearest
from engine.core.tags import OutputTag
from engine.protocol.signals import Signal, Watermark
from engine.runtime.exchange.channels import OutputGate
from engine.runtime.operators.base import Operator, OperatorContext, OperatorSnapshot, Output
from engine.runtime.running import RUNNING

T = TypeVar("T")


class GatesOutput:
    """The end of the chain. Rows go to the main gates, side outputs to the gates of their tag, signals to all gates."""

    def __init__(self, gates: Sequence[OutputGate]) -> None:
        self._gates = gates
        self._main = [gate for gate in gates if gate.side is None]

    def emit(self, batch: pa.RecordBatch) -> None:
        if not self._main and self._gates:
            running = RUNNING.get()
            raise NotTaken(
                f"operator {running.uid if running else ''!r} emits records to its main output, which nothing takes: "
                "end the stream with sink_to(...) or print() too, or emit to side outputs only"
            )
        for gate in self._main:
            gate.emit(batch)

    def emit_side(self, uid: str, tag: OutputTag, batch: pa.RecordBatch) -> None:
        taken = [gate for gate in self._gates if gate.side == (uid, tag.name)]
        if not taken:
            names = [gate.side[1] for gate in self._gates if gate.side is not None and gate.side[0] == uid]
            raise NotTaken(
                f"operator {uid!r} emits to the side output {tag.name!r}, which nothing takes"
                f"{nearest(tag.name, names)}: call get_side_output(...) with this tag on its stream"
            )
        for gate in taken:
            gate.emit(batch)

    def watermark(self, timestamp_ms: int) -> None:
        self.signal(Watermark(timestamp_ms))

    def signal(self, signal: Signal) -> None:
        for gate in self._gates:
            gate.broadcast(signal)


class _Link:
    def __init__(self, operator: Operator, context: OperatorContext, after: Output) -> None:
        self._operator = operator
        self._context = context
        self._after = after

    def emit(self, batch: pa.RecordBatch) -> None:
        self._call(self._operator.process, batch, self._after)

    def emit_second(self, batch: pa.RecordBatch) -> None:
        self._call(self._operator.process_second, batch, self._after)

    def emit_side(self, uid: str, tag: OutputTag, batch: pa.RecordBatch) -> None:
        """Passes side output on to the end of the chain: no operator behind takes it."""
        self._after.emit_side(uid, tag, batch)

    def work(self, max_rows: int) -> bool:
        return self._call(self._operator.work, max_rows, self._after)

    def watermark(self, timestamp_ms: int) -> None:
        self._call(self._operator.on_watermark, timestamp_ms, self._after)

    def release(self) -> None:
        self._call(self._operator.release, self._after)

    def end(self) -> None:
        self._call(self._operator.on_end, self._after)

    def snapshot(self, checkpoint: int) -> OperatorSnapshot | None:
        return self._call(self._operator.snapshot, checkpoint)

    def _call(self, method: Callable[..., T], *arguments: Any) -> T:
        before = RUNNING.set(self._context)
        result = method(*arguments)
        RUNNING.reset(before)
        return result


class OperatorChain:
    """The operators of one subtask. `input` takes batches and watermarks for the first operator."""

    def __init__(self, operators: Sequence[Operator], contexts: Sequence[OperatorContext], tail: GatesOutput) -> None:
        self.operators = list(operators)
        self.tail = tail
        self.input: Output = tail
        self._links: list[_Link] = []
        self._works = [operator for operator in operators if type(operator).work is not Operator.work]
        for operator, context in reversed(list(zip(operators, contexts, strict=True))):
            link = _Link(operator, context, self.input)
            self._links.insert(0, link)
            self.input = link

    @property
    def reads(self) -> frozenset[str] | None:
        """The columns of its input that the chain reads; None: all, since its last operator passes them on."""
        read: frozenset[str] | None = None
        for operator in reversed(self.operators):
            read = operator.reads(read)
        return read

    def emit_second(self, batch: pa.RecordBatch) -> None:
        """Passes a batch of the second input to the first operator."""
        self._links[0].emit_second(batch)

    def end(self) -> None:
        """Tells each operator, first to last, that no record follows."""
        for link in self._links:
            link.release()
            link.end()

    def release(self) -> None:
        """Lets each operator, first to last, emit the rows that it holds back."""
        for link in self._links:
            link.release()

    def snapshots(self, checkpoint: int) -> Iterator[OperatorSnapshot | None]:
        """Takes the snapshot of each operator, first to last."""
        return (link.snapshot(checkpoint) for link in self._links)

    def work(self, max_rows: int) -> bool:
        """Lets each operator do some of what is due by itself; returns whether any did."""
        return bool(self._works) and any([link.work(max_rows) for link in self._links])

    @property
    def firing(self) -> bool:
        """True while an operator holds a watermark back."""
        return any(operator.firing for operator in self._works)

    @property
    def due_ms(self) -> float | None:
        """When an operator will have something to do by itself."""
        times = [operator.due_ms for operator in self._works]
        return min((time for time in times if time is not None), default=None)

    @property
    def blocked(self) -> bool:
        return any(operator.blocked for operator in self.operators)

    @property
    def wakeup_ms(self) -> float | None:
        """When a blocked operator has to be asked again; None: none of them."""
        times = [operator.wakeup_ms for operator in self.operators]
        return min((time for time in times if time is not None), default=None)
