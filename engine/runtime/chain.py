"""Chains the operators of a vertex: a batch goes from one to the next by a plain call, without serialisation (A10)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pyarrow as pa

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
        for gate in self._main:
            gate.emit(batch)

    def emit_side(self, uid: str, tag: OutputTag, batch: pa.RecordBatch) -> None:
        for gate in self._gates:
            if gate.side == (uid, tag.name):
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

    def watermark(self, timestamp_ms: int) -> None:
        self._call(self._operator.on_watermark, timestamp_ms, self._after)

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
        for operator, context in reversed(list(zip(operators, contexts, strict=True))):
            link = _Link(operator, context, self.input)
            self._links.insert(0, link)
            self.input = link

    def emit_second(self, batch: pa.RecordBatch) -> None:
        """Passes a batch of the second input to the first operator."""
        self._links[0].emit_second(batch)

    def end(self) -> None:
        """Tells each operator, first to last, that no record follows."""
        for link in self._links:
            link.end()

    def snapshots(self, checkpoint: int) -> Iterator[OperatorSnapshot | None]:
        """Takes the snapshot of each operator, first to last."""
        return (link.snapshot(checkpoint) for link in self._links)

    @property
    def blocked(self) -> bool:
        return any(operator.blocked for operator in self.operators)

    @property
    def wakeup_ms(self) -> float | None:
        """When a blocked operator has to be asked again; None: none of them."""
        times = [operator.wakeup_ms for operator in self.operators]
        return min((time for time in times if time is not None), default=None)
