"""The API for writing jobs: import everything from `engine.api`.

Begin with a `StreamEnvironment`, and call methods of the streams that it returns.
"""

from typing import TYPE_CHECKING, NoReturn

from engine.api import foreign
from engine.api.environment import StreamEnvironment
from engine.api.patterns import Pattern
from engine.api.streams.all_windowed import AllWindowedStream
from engine.api.streams.broadcast import BroadcastStream
from engine.api.streams.connected import ConnectedStreams, KeyedConnectedStreams
from engine.api.streams.data import DataStream
from engine.api.streams.interval_join import IntervalJoin, IntervalJoined
from engine.api.streams.keyed import KeyedStream
from engine.api.streams.pattern import CEP, PatternStream
from engine.api.streams.sink import DataStreamSink
from engine.api.streams.window_join import JoinedStreams, WindowCoGrouped, WindowJoined
from engine.api.streams.windowed import WindowedStream
from engine.api.watermarks import WatermarkStrategy
from engine.api.window_assigners import (
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeSessionWindows,
    SlidingProcessingTimeWindows,
    TumblingProcessingTimeWindows,
)
from engine.api.windows import SlidingEventTimeWindows, TumblingEventTimeWindows
from engine.core.broadcast_functions import (
    BroadcastContext,
    BroadcastOnTimerContext,
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    ReadOnlyBroadcastContext,
)
from engine.core.builtin_triggers import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
)
from engine.core.connected_functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from engine.core.errors import JobError
from engine.core.evictors import CountEvictor, Evictor, EvictorContext, TimeEvictor, TimestampedValue
from engine.core.failed_records import FAILED
from engine.core.functions import (
    AggregateFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    KeyedStateStore,
    MapFunction,
    OnTimerContext,
    OperatorStateStore,
    ProcessContext,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
)
from engine.core.gates import Gate
from engine.core.join_functions import (
    CoGroupFunction,
    FlatJoinFunction,
    JoinContext,
    JoinFunction,
    ProcessJoinFunction,
)
from engine.core.nearest import nearest
from engine.core.pattern_functions import Match, MatchContext, PatternProcessFunction
from engine.core.patterns import AfterMatchSkipStrategy, ConditionContext
from engine.core.state_ttl import StateTtlConfig
from engine.core.state_types import (
    AggregatingState,
    AggregatingStateDescriptor,
    BroadcastState,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    OperatorListState,
    ReadOnlyBroadcastState,
    ReducingState,
    ReducingStateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from engine.core.tags import OutputTag
from engine.core.timers import TimeDomain, TimerService
from engine.core.triggers import OnMergeContext, Trigger, TriggerContext, TriggerResult
from engine.core.user_metrics import Counter, MetricGroup
from engine.core.watermark_generators import WatermarkGenerator, WatermarkGeneratorContext, WatermarkOutput
from engine.core.window_functions import (
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    SessionWindowTimeGapExtractor,
    WindowContext,
)
from engine.core.windows import GlobalWindow, TimeWindow
from engine.protocol.config import CheckpointConfig, CheckpointingMode
from engine.protocol.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart
from engine.state.windows.aggregates import (
    Aggregate,
    approx_count_distinct,
    approx_quantile,
    approx_quantiles,
    count,
    count_distinct,
    first,
    last,
    maximum,
    mean,
    minimum,
    quantile,
    quantiles,
    stddev,
    top_n,
    total,
    variance,
)

if not TYPE_CHECKING:  # a type checker would take every name for known

    def __getattr__(name: str) -> NoReturn:
        """Says what to write in place of a name of PyFlink or Spark, or of one that is misspelled."""
        said = foreign.MODULE.get(name) or (nearest(name, __all__).removeprefix("; ") if name[0] != "_" else "")
        if said:
            raise ImportError(f"engine.api has no {name}: {said}")
        raise AttributeError(f"module 'engine.api' has no attribute {name!r}")


__all__ = [
    "CEP",
    "FAILED",
    "AfterMatchSkipStrategy",
    "Aggregate",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "AllWindowedStream",
    "BroadcastContext",
    "BroadcastOnTimerContext",
    "BroadcastProcessFunction",
    "BroadcastState",
    "BroadcastStream",
    "CheckpointConfig",
    "CheckpointingMode",
    "CoFlatMapFunction",
    "CoGroupFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "ConditionContext",
    "ConnectedStreams",
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountEvictor",
    "CountTrigger",
    "Counter",
    "DataStream",
    "DataStreamSink",
    "EventTimeSessionWindows",
    "EventTimeTrigger",
    "Evictor",
    "EvictorContext",
    "ExponentialDelay",
    "FailureRate",
    "FilterFunction",
    "FixedDelay",
    "FlatJoinFunction",
    "FlatMapFunction",
    "Function",
    "Gate",
    "GlobalWindow",
    "GlobalWindows",
    "IntervalJoin",
    "IntervalJoined",
    "JobError",
    "JoinContext",
    "JoinFunction",
    "JoinedStreams",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedConnectedStreams",
    "KeyedProcessFunction",
    "KeyedStateStore",
    "KeyedStream",
    "ListState",
    "ListStateDescriptor",
    "MapFunction",
    "MapState",
    "MapStateDescriptor",
    "Match",
    "MatchContext",
    "MetricGroup",
    "NeverTrigger",
    "NoRestart",
    "OnMergeContext",
    "OnTimerContext",
    "OperatorListState",
    "OperatorStateStore",
    "OutputTag",
    "Pattern",
    "PatternProcessFunction",
    "PatternStream",
    "ProcessAllWindowFunction",
    "ProcessContext",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ProcessWindowFunction",
    "ProcessingTimeSessionWindows",
    "ProcessingTimeTrigger",
    "PurgingTrigger",
    "ReadOnlyBroadcastContext",
    "ReadOnlyBroadcastState",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "RuntimeContext",
    "SessionWindowTimeGapExtractor",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "StateTtlConfig",
    "StreamEnvironment",
    "TimeDomain",
    "TimeEvictor",
    "TimeWindow",
    "TimerService",
    "TimestampedValue",
    "Trigger",
    "TriggerContext",
    "TriggerResult",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "ValueState",
    "ValueStateDescriptor",
    "WatermarkGenerator",
    "WatermarkGeneratorContext",
    "WatermarkOutput",
    "WatermarkStrategy",
    "WindowCoGrouped",
    "WindowContext",
    "WindowJoined",
    "WindowedStream",
    "approx_count_distinct",
    "approx_quantile",
    "approx_quantiles",
    "count",
    "count_distinct",
    "first",
    "last",
    "maximum",
    "mean",
    "minimum",
    "quantile",
    "quantiles",
    "stddev",
    "top_n",
    "total",
    "variance",
]
