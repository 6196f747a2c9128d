"""The API for writing jobs: import everything from `engine.api`.

Begin with a `StreamEnvironment`, and call methods of the streams that it returns.
"""

from engine.api.environment import StreamEnvironment
from engine.api.streams.broadcast import BroadcastStream
from engine.api.streams.connected import ConnectedStreams, KeyedConnectedStreams
from engine.api.streams.data import DataStream
from engine.api.streams.keyed import KeyedStream
from engine.api.streams.sink import DataStreamSink
from engine.api.streams.windowed import WindowedStream
from engine.api.watermarks import WatermarkStrategy
from engine.api.windows import SlidingEventTimeWindows, TumblingEventTimeWindows
from engine.core.broadcast_functions import (
    BroadcastContext,
    BroadcastOnTimerContext,
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    ReadOnlyBroadcastContext,
)
from engine.core.connected_functions import (
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
)
from engine.core.errors import JobError
from engine.core.functions import (
    AggregateFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    MapFunction,
    OnTimerContext,
    OperatorStateStore,
    ProcessContext,
    ProcessFunction,
    ReduceFunction,
    RuntimeContext,
)
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
from engine.core.user_metrics import Counter, MetricGroup
from engine.protocol.config import CheckpointConfig, CheckpointingMode
from engine.protocol.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart
from engine.state.windows.aggregates import Aggregate, count, maximum, mean, minimum, total

__all__ = [
    "Aggregate",
    "AggregateFunction",
    "AggregatingState",
    "AggregatingStateDescriptor",
    "BroadcastContext",
    "BroadcastOnTimerContext",
    "BroadcastProcessFunction",
    "BroadcastState",
    "BroadcastStream",
    "CheckpointConfig",
    "CheckpointingMode",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "ConnectedStreams",
    "Counter",
    "DataStream",
    "DataStreamSink",
    "ExponentialDelay",
    "FailureRate",
    "FilterFunction",
    "FixedDelay",
    "FlatMapFunction",
    "Function",
    "JobError",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedConnectedStreams",
    "KeyedProcessFunction",
    "KeyedStream",
    "ListState",
    "ListStateDescriptor",
    "MapFunction",
    "MapState",
    "MapStateDescriptor",
    "MetricGroup",
    "NoRestart",
    "OnTimerContext",
    "OperatorListState",
    "OperatorStateStore",
    "OutputTag",
    "ProcessContext",
    "ProcessFunction",
    "ReadOnlyBroadcastContext",
    "ReadOnlyBroadcastState",
    "ReduceFunction",
    "ReducingState",
    "ReducingStateDescriptor",
    "RuntimeContext",
    "SlidingEventTimeWindows",
    "StateTtlConfig",
    "StreamEnvironment",
    "TimeDomain",
    "TimerService",
    "TumblingEventTimeWindows",
    "ValueState",
    "ValueStateDescriptor",
    "WatermarkStrategy",
    "WindowedStream",
    "count",
    "maximum",
    "mean",
    "minimum",
    "total",
]
