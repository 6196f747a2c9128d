"""`StreamEnvironment`: where a job begins.

There are two ways to write a job. It is a function that takes an environment, and `weir run` or `weir submit` finds it
by its import path; or it is a script or a notebook that makes an environment on a Spark session and executes it there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from engine.api import foreign
from engine.api.dataframes import dataframe_schema
from engine.api.functions import checked_is, no_method, shown
from engine.api.params import Params
from engine.api.schema import parse_schema
from engine.api.streams.data import DataStream
from engine.api.streams.placement import checked_parallelism
from engine.api.watermarks import WatermarkStrategy
from engine.connectors.dataframe import DataFrameLike, DataFrameSource
from engine.connectors.elements import ElementsSource
from engine.core.durations import Duration, to_ms
from engine.core.errors import JobError, WeirError
from engine.core.names import check_name
from engine.core.sources import Source
from engine.graph.job_graph import JobGraph, OperatorSpec, SourceSpec
from engine.graph.scalable import ScalableJob
from engine.graph.stream_graph import StreamGraph, StreamInput
from engine.protocol.config import IN_FLIGHT_TARGET_MS, CheckpointConfig, CheckpointingMode
from engine.protocol.restart import ExponentialDelay, NoRestart, RestartStrategy
from engine.protocol.scaling import Scaling
from engine.state.key_groups import DEFAULT_MAX_PARALLELISM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from engine.process.attached import AttachedJob, JobResult


class StreamEnvironment:
    """Makes the first streams of a job, and holds the settings of the whole job.

        def job(env: StreamEnvironment) -> None:
            env.enable_checkpointing("1 s")
            views = env.from_elements([{"app": "a", "pv": 1}, {"app": "a", "pv": 2}], "app string, pv long")
            views.key_by("app").sum("pv", uid="sums").print()

    `weir run`, `weir submit` and the like make the environment, with the `params` and the `parallelism` of the
    submission. A script or a notebook makes it with `spark`, the session to execute on, and `store`, the directory for
    the job's snapshots and tables.
    """

    def __init__(
        self,
        spark: SparkSession | None = None,
        *,
        store: str | Path = ".weir",
        params: Mapping[str, str] | None = None,
        parallelism: int | None = None,
        allow_shared_store: bool = False,
    ) -> None:
        self._spark = spark
        self._store = store
        self._allow_shared_store = allow_shared_store
        self.params = Params(params or {})
        self.graph = StreamGraph()
        self.checkpoints = CheckpointConfig()
        self.max_parallelism = DEFAULT_MAX_PARALLELISM
        self._submitted_parallelism = None if parallelism is None else checked_parallelism(parallelism)
        self._own_parallelism: int | None = None
        self._restart: RestartStrategy | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the Spark session out: functions of a job that refer to the environment are sent to the slots."""
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
        in_flight_target: Duration = IN_FLIGHT_TARGET_MS,
    ) -> None:
        """Takes a checkpoint every `interval`, such as "1 s".

        With None there are checkpoints only on request (`weir checkpoint`) and at the end of a bounded job.

        `mode` is exactly once, or at least once. A checkpoint that takes longer than `timeout` is aborted. The next one
        starts at least `min_pause` after the last was completed, and at most `max_concurrent` run at a time. After more
        than `tolerable_failed` failed checkpoints in a row the job restarts from its last epoch, as its restart
        strategy says. The newest `retained` are kept.

        A barrier waits behind the data before it, so receivers accept about as much as they consume in
        `in_flight_target`. A longer time makes checkpoints slower, a much shorter one the job.
        """
        checked_is(
            "enable_checkpointing, mode", mode, CheckpointingMode, "CheckpointingMode.EXACTLY_ONCE or AT_LEAST_ONCE"
        )
        try:
            self.checkpoints = CheckpointConfig(
                interval_ms=None if interval is None else to_ms(interval, "enable_checkpointing, interval"),
                mode=mode,
                timeout_ms=to_ms(timeout, "enable_checkpointing, timeout"),
                min_pause_ms=to_ms(min_pause, "enable_checkpointing, min_pause"),
                max_concurrent=max_concurrent,
                tolerable_failed=tolerable_failed,
                retained=retained,
                in_flight_target_ms=to_ms(in_flight_target, "enable_checkpointing, in_flight_target"),
            )
        except ValueError as error:
            raise JobError(f"enable_checkpointing: {error}") from error

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            no_method(self, name, foreign.ENVIRONMENT)

    def set_parallelism(self, parallelism: int) -> None:
        """Sets the parallelism of operators that do not set their own. It goes before that of the submission."""
        self._own_parallelism = checked_parallelism(parallelism)

    @property
    def parallelism(self) -> int:
        """The parallelism of operators that do not set their own: the job's own, the submitted one, or 2."""
        return self._own_parallelism or self._submitted_parallelism or 2

    def set_restart_strategy(self, strategy: RestartStrategy) -> None:
        """Sets when and how often the job restarts after a failure, as in `FixedDelay(3)`.

        Only the job's own failures count and can end it; after a failure from outside it always restarts.
        """
        if isinstance(strategy, type) or not hasattr(strategy, "on_failure"):
            raise JobError(f"set_restart_strategy takes a strategy such as FixedDelay(3), not {shown(strategy)}")
        self._restart = strategy

    @property
    def restart(self) -> RestartStrategy:
        """The restart strategy that was set, or Flink's default: none without checkpoints, else exponential delay."""
        if self._restart is not None:
            return self._restart
        return NoRestart() if self.checkpoints.interval_ms is None else ExponentialDelay()

    def from_source(self, source: Source, schema: pa.Schema | str, uid: str, digest: bool = False) -> DataStream:
        """Returns the stream of a source's records, which have the given schema.

        By its `uid` a restarted job finds the positions in the source again. A source that knows the number of its
        splits has at most that parallelism. `digest` adds a digest of the records to the ledger, for drills. It costs
        about as much as a simple columnar job.
        """
        checked_is("from_source", source, Source, 'a source such as JsonSource("/data/events")')
        if isinstance(schema, WatermarkStrategy):
            raise JobError(
                "from_source takes a schema as its second argument: call assign_timestamps_and_watermarks(strategy) on "
                "the stream that it returns"
            )
        parsed = parse_schema(schema)
        try:
            source.check(parsed)
        except WeirError as error:
            raise JobError(f"source {uid!r}: {error}") from error
        most = source.max_parallelism
        if most == 0:
            raise JobError(f"source {uid!r} has no splits")
        parallelism = self.parallelism if most is None else min(self.parallelism, most)
        node = self.graph.add_source(SourceSpec(uid, source, parsed, None, digest), parallelism)
        return DataStream(self, node, parsed)

    def from_spark(self, frame: DataFrameLike, uid: str, schema: pa.Schema | str | None = None) -> DataStream:
        """Returns the rows of a DataFrame as a bounded stream.

        `frame` is a DataFrame of the environment's session, or a function that makes one from a session; a function
        needs `schema`. Spark writes the rows into the job's store once, before slots start, so that a restarted job
        reads the same rows.
        """
        return self.from_source(DataFrameSource(frame), dataframe_schema(frame, schema, f"from_spark {uid!r}"), uid)

    def from_elements(
        self, rows: Sequence[Mapping[str, Any]], schema: pa.Schema | str, uid: str = "elements"
    ) -> DataStream:
        """Returns a bounded stream of these records, for tests and examples."""
        parsed = parse_schema(schema)
        return self.from_source(ElementsSource(rows, parsed), parsed, uid)

    def _add_operator(
        self, spec: OperatorSpec, schema: pa.Schema, parallelism: int, *inputs: StreamInput
    ) -> DataStream:
        """Adds an operator behind `inputs` and returns the stream of its results.

        The kinds of streams call this, so that they need not import each other.
        """
        return DataStream(self, self.graph.add_operator(spec, schema, parallelism, *inputs), schema)

    def build(self, name: str, code: str = "") -> JobGraph:
        """Returns the graph of the job as written so far. `code` is a digest of the job's code, which slots compare."""
        return self.scalable(name, code).at(Scaling())

    def scalable(self, name: str, code: str = "") -> ScalableJob:
        """Returns the job as written so far; its graph can be made at any parallelism."""
        check_name("job", name)
        return ScalableJob(self.graph, name, self.checkpoints, self.restart, self.max_parallelism, code)

    def execute(self, name: str, *, allow_non_restored_state: bool = False) -> JobResult:
        """Runs the job on the environment's Spark session until it ends. Returns its outcome, epoch and tables.

        If a job of this name has run before, it goes on from its last epoch. If operators are gone since then, the job
        is refused, unless `allow_non_restored_state` drops their state.
        """
        return self.execute_async(name, allow_non_restored_state=allow_non_restored_state).result()

    def execute_async(self, name: str, *, allow_non_restored_state: bool = False) -> AttachedJob:
        """Starts the job on the environment's Spark session and returns at once, for notebooks.

        The returned job can be watched, cancelled and waited for.
        """
        # Imported here because it imports the whole engine, which a slot that builds the job does without.
        from engine.process.attached import AttachedJob

        if self._spark is None:
            raise JobError(
                "there is no Spark session to execute on: `weir run` executes a job by itself, so leave this call out; "
                "in a script write StreamEnvironment(spark)"
            )
        return AttachedJob(
            self._spark,
            self.scalable(name),
            self._store,
            allow_non_restored_state=allow_non_restored_state,
            allow_shared_store=self._allow_shared_store,
        )
