"""The API for writing jobs: import everything from `engine.api`.

Begin with a `StreamEnvironment`, and call methods of the streams that it returns.
"""

from engine.api.environment import StreamEnvironment
from engine.api.streams.broadcast import BroadcastStream
from engine.api.streams.data import DataStream
from engine.api.streams.keyed import KeyedStream
from engine.api.streams.sink import DataStreamSink
from engine.api.streams.windowed import WindowedStream
from engine.api.watermarks import WatermarkStrategy
from engine.api.windows import TumblingEventTimeWindows
from engine.core.broadcast_functions import (
    BroadcastContext,
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    ReadOnlyBroadcastContext,
)
from engine.core.errors import JobError
from engine.core.functions import (
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    MapFunction,
    OperatorStateStore,
    ProcessContext,
    ReduceFunction,
    RuntimeContext,
)
from engine.core.state_types import (
    BroadcastState,
    ListStateDescriptor,
    MapStateDescriptor,
    OperatorListState,
    ReadOnlyBroadcastState,
    ValueState,
    ValueStateDescriptor,
)
from engine.core.tags import OutputTag
from engine.protocol.config import CheckpointConfig, CheckpointingMode
from engine.protocol.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart
from engine.state.windows.aggregates import Aggregate, count, maximum, mean, minimum, total

__all__ = [
    "Aggregate",
    "BroadcastContext",
    "BroadcastProcessFunction",
    "BroadcastState",
    "BroadcastStream",
    "CheckpointConfig",
    "CheckpointingMode",
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
    "KeyedProcessFunction",
    "KeyedStream",
    "ListStateDescriptor",
    "MapFunction",
    "MapStateDescriptor",
    "NoRestart",
    "OperatorListState",
    "OperatorStateStore",
    "OutputTag",
    "ProcessContext",
    "ReadOnlyBroadcastContext",
    "ReadOnlyBroadcastState",
    "ReduceFunction",
    "RuntimeContext",
    "StreamEnvironment",
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
