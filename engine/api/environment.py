"""`StreamEnvironment`: where a job begins. A job is a function of its environment; its import path is its address."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from engine.api.durations import Duration, to_ms
from engine.api.errors import JobError
from engine.api.params import Params
from engine.api.placement import checked_parallelism
from engine.api.schema import parse_schema
from engine.api.stream import DataStream
from engine.connectors.base import Source
from engine.connectors.elements import ElementsSource
from engine.graph.job_graph import SourceSpec
from engine.graph.stream_graph import StreamGraph
from engine.protocol.config import CheckpointConfig, CheckpointingMode
from engine.protocol.restart import ExponentialDelay, NoRestart, RestartStrategy
from engine.runtime.errors import WeirError
from engine.state.keygroups import DEFAULT_MAX_PARALLELISM


class StreamEnvironment:
    def __init__(self, params: Mapping[str, str] | None = None, parallelism: int | None = None) -> None:
        self.params = Params(params or {})
        self.graph = StreamGraph()
        self.checkpoints = CheckpointConfig()
        self.max_parallelism = DEFAULT_MAX_PARALLELISM
        self._submitted_parallelism = None if parallelism is None else checked_parallelism(parallelism)
        self._own_parallelism: int | None = None
        self._restart: RestartStrategy | None = None

    def enable_checkpointing(
        self,
        interval: Duration | None,
        *,
        mode: CheckpointingMode = CheckpointingMode.EXACTLY_ONCE,
        timeout: Duration = "10 min",
        min_pause: Duration = 0,
        max_concurrent: int = 1,
        tolerable_failed: int = 0,
        retained: int = 3,
    ) -> None:
        """Checkpoint every `interval`; None: only by hand, and at the end of a bounded job."""
        try:
            self.checkpoints = CheckpointConfig(
                interval_ms=None if interval is None else to_ms(interval),
                mode=mode,
                timeout_ms=to_ms(timeout),
                min_pause_ms=to_ms(min_pause),
                max_concurrent=max_concurrent,
                tolerable_failed=tolerable_failed,
                retained=retained,
            )
        except ValueError as error:
            raise JobError(f"enable_checkpointing: {error}") from error

    def set_parallelism(self, parallelism: int) -> None:
        """The job's own choice; it goes before what the job is submitted with."""
        self._own_parallelism = checked_parallelism(parallelism)

    @property
    def parallelism(self) -> int:
        return self._own_parallelism or self._submitted_parallelism or 2

    def set_restart_strategy(self, strategy: RestartStrategy) -> None:
        self._restart = strategy

    @property
    def restart(self) -> RestartStrategy:
        """As Flink: no restart without checkpoints, exponential delay with them."""
        if self._restart is not None:
            return self._restart
        return NoRestart() if self.checkpoints.interval_ms is None else ExponentialDelay()

    def from_source(self, source: Source, schema: pa.Schema | str, uid: str) -> DataStream:
        """A stream of a source's splits; its parallelism is at most the number of splits, where that is known."""
        parsed = parse_schema(schema)
        try:
            source.check(parsed)
        except WeirError as error:
            raise JobError(f"source {uid!r}: {error}") from error
        most = source.max_parallelism
        if most == 0:
            raise JobError(f"source {uid!r} has no splits")
        parallelism = self.parallelism if most is None else min(self.parallelism, most)
        node = self.graph.add_source(SourceSpec(uid, source, parsed, None), parallelism)
        return DataStream(self, node, parsed)

    def from_elements(
        self, rows: Sequence[Mapping[str, Any]], schema: pa.Schema | str, uid: str = "elements"
    ) -> DataStream:
        """A bounded stream of these records."""
        parsed = parse_schema(schema)
        return self.from_source(ElementsSource(rows, parsed), parsed, uid)
