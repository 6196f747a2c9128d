"""`StreamEnvironment`: where a job begins.

A job is a function of its environment, and its import path is its address; or it is written down in a script or a
notebook around an environment that is attached to a Spark session, and executed there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from engine.api.dataframes import schema_of
from engine.api.params import Params
from engine.api.placement import checked_parallelism
from engine.api.schema import parse_schema
from engine.api.streams.data import DataStream
from engine.connectors.dataframe import DataFrameSource, Frame
from engine.connectors.elements import ElementsSource
from engine.core.durations import Duration, to_ms
from engine.core.errors import JobError, WeirError
from engine.core.sources import Source
from engine.graph.job_graph import JobGraph, SourceSpec
from engine.graph.stream_graph import StreamGraph
from engine.protocol.config import CheckpointConfig, CheckpointingMode
from engine.protocol.restart import ExponentialDelay, NoRestart, RestartStrategy
from engine.state.key_groups import DEFAULT_MAX_PARALLELISM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from engine.process.attached import AttachedJob


class StreamEnvironment:
    """`spark`: the session that the job is executed on. `store`: where its snapshots and tables are then."""

    def __init__(
        self,
        spark: SparkSession | None = None,
        *,
        store: str | Path = ".weir",
        params: Mapping[str, str] | None = None,
        parallelism: int | None = None,
    ) -> None:
        self._spark = spark
        self._store = store
        self.params = Params(params or {})
        self.graph = StreamGraph()
        self.checkpoints = CheckpointConfig()
        self.max_parallelism = DEFAULT_MAX_PARALLELISM
        self._submitted_parallelism = None if parallelism is None else checked_parallelism(parallelism)
        self._own_parallelism: int | None = None
        self._restart: RestartStrategy | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Functions of a job may hold on to it; they travel to the slots, the session stays with the driver."""
        return {**self.__dict__, "_spark": None}

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

    def from_spark(self, frame: Frame, uid: str, schema: pa.Schema | str | None = None) -> DataStream:
        """A bounded stream of a DataFrame's rows, materialised once in the job's store before its slots start.

        `frame`: a DataFrame of the attached session, or a function of a session that makes one (with `schema`).
        """
        return self.from_source(DataFrameSource(frame), schema_of(frame, schema, f"from_spark {uid!r}"), uid)

    def from_elements(
        self, rows: Sequence[Mapping[str, Any]], schema: pa.Schema | str, uid: str = "elements"
    ) -> DataStream:
        """A bounded stream of these records."""
        parsed = parse_schema(schema)
        return self.from_source(ElementsSource(rows, parsed), parsed, uid)

    def build(self, name: str, code: str = "") -> JobGraph:
        """What was written so far, as a graph. `code`: a digest of what else slots have to agree on."""
        return self.graph.translate(name, self.checkpoints, self.restart, self.max_parallelism, code)

    def execute(self, name: str) -> None:
        """Run the job on the attached session until it has ended; it goes on from the last epoch of its name."""
        self.execute_async(name).wait()

    def execute_async(self, name: str) -> AttachedJob:
        """Start the job on the attached session and go on; for notebooks."""
        from engine.process.attached import AttachedJob

        if self._spark is None:
            raise JobError("there is no session to execute on: write StreamEnvironment(spark), or use `weir run`")
        return AttachedJob(self._spark, self.build(name), self._store)
