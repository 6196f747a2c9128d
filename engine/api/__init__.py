"""What a job's author writes with."""

from engine.api.environment import StreamEnvironment
from engine.api.errors import JobError
from engine.api.placement import DataStreamSink
from engine.api.stream import DataStream, KeyedStream, WindowedStream
from engine.api.windows import TumblingEventTimeWindows, WatermarkStrategy
from engine.protocol.config import CheckpointConfig, CheckpointingMode
from engine.protocol.restart import ExponentialDelay, FailureRate, FixedDelay, NoRestart
from engine.runtime.functions import (
    FilterFunction,
    FlatMapFunction,
    Function,
    KeyedProcessFunction,
    MapFunction,
    ProcessContext,
    ReduceFunction,
    RuntimeContext,
)
from engine.runtime.tags import OutputTag
from engine.state.aggregates import Aggregate, count, maximum, mean, minimum, total
from engine.state.heap import ValueState, ValueStateDescriptor

__all__ = [
    "Aggregate",
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
    "KeyedProcessFunction",
    "KeyedStream",
    "MapFunction",
    "NoRestart",
    "OutputTag",
    "ProcessContext",
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
