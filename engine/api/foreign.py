"""Names of PyFlink and of Spark that Weir spells otherwise, and what to write in their place.

A name is looked up here only if Weir has none of that spelling.
"""

from __future__ import annotations

_WINDOW = 'key_by(COLUMN).window(TumblingEventTimeWindows.of("10 s"))'
_WATERMARKS = (
    'assign_timestamps_and_watermarks(WatermarkStrategy.for_bounded_out_of_orderness("10 s").with_timestamps(COLUMN))'
)
_UID = "give it to the operator itself, as in map(function, uid=...): there is no call for it afterwards"
_PLACED = "leave it out: neighbours without an exchange between them are chained; slot_sharing_group(name) separates"
_PROCESS = "write key_by(COLUMN).process(function, uid=...) with a KeyedProcessFunction, which keeps state per key"
_COLUMNS = (
    "write select(...) with the columns to keep, and new ones as polars expressions: select('a', b=pl.col('x') * 2)"
)

ENVIRONMENT = {
    "add_source": "it is called from_source(source, schema, uid)",
    "from_collection": "it is called from_elements(rows, schema)",
    "read_text_file": 'write from_source(JsonSource("/data/events"), schema, uid), or CsvSource or ParquetSource',
    "read": 'write from_source(ParquetSource("/data/events"), schema, uid), or from_spark(frame, uid) for a DataFrame',
    "read_stream": 'write from_source(JsonSource("/data/events", watch="2 s"), schema, uid)',
    "create_data_frame": "write from_elements(rows, schema), or from_spark(frame, uid) for a DataFrame",
    "from_data_frame": "it is called from_spark(frame, uid)",
    "set_max_parallelism": "write env.max_parallelism = 128",
    "get_config": "leave it out: its options are methods of the environment, or arguments of enable_checkpointing",
    "disable_operator_chaining": _PLACED,
    "get_parallelism": "write env.parallelism",
    "get_checkpoint_config": "its options are arguments: enable_checkpointing(interval, mode=..., timeout=..., ...)",
    "set_runtime_mode": "leave it out: a job whose sources end finishes by itself",
    "set_stream_time_characteristic": "leave it out: the windows say which time they mean",
    "set_state_backend": "leave it out: Weir has one",
    "set_buffer_timeout": "leave it out: batches are as large as what has arrived",
    "add_jars": "leave it out: connectors are Python",
    "from_kafka": "Weir has no Kafka connector: write a source of your own, of FixedSource (docs/guide/own-source.md)",
    "add_python_file": "start the job with `weir run JOB --py-files FILE`",
}

STREAM = {
    "add_sink": "it is called sink_to(sink, uid)",
    "write_stream": "write sink_to(TableSink(NAME), uid), which plain spark.read.parquet reads",
    "with_watermark": f"write {_WATERMARKS}",
    "assign_timestamps": f"write {_WATERMARKS}",
    "group_by": "it is called key_by(COLUMN)",
    "agg": f"write {_WINDOW}.aggregate(n=count(), uid=...)",
    "time_window": f"write {_WINDOW}",
    "time_window_all": 'write window_all(TumblingEventTimeWindows.of("10 s"))',
    "with_column": _COLUMNS,
    "with_column_renamed": _COLUMNS,
    "with_columns": _COLUMNS,
    "drop": _COLUMNS,
    "project": _COLUMNS,
    "select_expr": "write select(...): it takes SQL texts, as in select('a', 'x * 2 AS b')",
    "union_all": "it is called union(other)",
    "union_by_name": "write union(other); select(...) puts the columns of both in the same order",
    "drop_duplicates": _PROCESS,
    "drop_duplicates_within_watermark": f"{_PROCESS} and lets it expire (StateTtlConfig)",
    "map_in_arrow": "it is called map_batches(function, schema)",
    "map_in_pandas": "write map_batches(function, schema): the function gets a RecordBatch, which has to_pandas()",
    "for_each_batch": "write sink_to(...) with a sink of your own, or map_batches(function, schema)",
    "foreach_batch": "write sink_to(...) with a sink of your own, or map_batches(function, schema)",
    "for_each": "write sink_to(...) with a sink of your own, or map(function)",
    "foreach": "write sink_to(...) with a sink of your own, or map(function)",
    "name": _UID,
    "uid": _UID,
    "set_uid_hash": _UID,
    "set_description": _UID,
    "set_max_parallelism": "it belongs to the whole job: write env.max_parallelism = 128",
    "disable_chaining": _PLACED,
    "start_new_chain": _PLACED,
    "execute_and_collect": "write sink_to(TableSink(NAME), uid) and read the table, or engine.testing.run in a test",
    "get_type": "write stream.schema",
}

KEYED = {
    "map_groups_with_state": _PROCESS,
    "flat_map_groups_with_state": _PROCESS,
    "apply_in_pandas_with_state": _PROCESS,
    "transform_with_state": _PROCESS,
    "transform_with_state_in_pandas": _PROCESS,
    "agg": 'write window(TumblingEventTimeWindows.of("10 s")).aggregate(n=count(), uid=...)',
    "time_window": 'write window(TumblingEventTimeWindows.of("10 s"))',
}

WINDOWED = {"agg": "it is called aggregate(n=count(), uid=...)"}

STRATEGY = {
    "with_timestamp_assigner": 'it is called with_timestamps("ts"): name the column that holds the time',
}

_DDL = 'types are Spark DDL texts: "long", "string", "array<long>", "struct<a long, b string>"'
_DURATION = 'durations are texts such as "10 s", "5 min", "1 h"'
_ONLY_BACKEND = "leave it out: Weir has one"

MODULE = {
    "StreamExecutionEnvironment": "it is called StreamEnvironment, and a job gets it as its argument: def job(env)",
    "Types": _DDL,
    "TypeInformation": _DDL,
    "DataTypes": _DDL,
    "Row": "a record is a dict",
    "Time": _DURATION,
    "Duration": _DURATION,
    "TimestampAssigner": 'name the column instead: WatermarkStrategy....with_timestamps("ts")',
    "Watermark": "a generator emits milliseconds: output.emit_watermark(event_timestamp - 2000)",
    "WatermarkGeneratorSupplier": "for_generator takes a function: for_generator(lambda context: MyGenerator())",
    "KeySelector": "key_by takes the names of columns: compute the key as a column first",
    "SourceFunction": "extend FixedSource or Source of engine.core.sources",
    "SinkFunction": "extend Sink of engine.core.sinks",
    "WindowFunction": "extend ProcessWindowFunction",
    "RuntimeExecutionMode": "leave it out: a job whose sources end finishes by itself",
    "TimeCharacteristic": "leave it out: the windows say which time they mean",
    "RestartStrategies": "write set_restart_strategy(FixedDelay(3)), or FailureRate, ExponentialDelay, NoRestart",
    "HashMapStateBackend": _ONLY_BACKEND,
    "EmbeddedRocksDBStateBackend": _ONLY_BACKEND,
    "MemoryStateBackend": _ONLY_BACKEND,
    "sum": 'it is called total("column")',
    "min": 'it is called minimum("column")',
    "max": 'it is called maximum("column")',
    "avg": 'it is called mean("column")',
    "countDistinct": 'it is called count_distinct("column")',
    "approx_percentile": "it is called approx_quantile",
    "percentile": "it is called quantile",
    "col": "write pl.col(COLUMN), with `import polars as pl`",
    "expr": "write a polars expression, with `import polars as pl`",
    "window": 'write key_by(COLUMN).window(TumblingEventTimeWindows.of("10 s"))',
    "KafkaSource": "Weir has no Kafka connector: write a source of your own, of FixedSource (docs/guide/own-source.md)",
    "KafkaSink": "Weir has no Kafka connector: write a sink of your own (docs/guide/own-sink.md)",
    "FileSink": "write TableSink of engine.connectors.table: a table is Parquet files",
    "Collector": "a function returns its records, or yields them",
    "run": "it is in engine.testing",
    "ListSource": "it is in engine.testing",
    "BroadcastStateDescriptor": "it is called MapStateDescriptor",
    "TableSink": "it is in engine.connectors.table",
    "ParquetSource": "it is in engine.connectors.files",
    "CsvSource": "it is in engine.connectors.files",
    "JsonSource": "it is in engine.connectors.files",
    "GeneratorSource": "it is in engine.connectors.generator",
}

ARGUMENTS = {
    "on_error": 'it is a call behind the operator, as in map(function).on_error("skip")',
    "malformed": 'only file sources have it; behind an operator call on_error("skip") or on_error("dead_letter")',
    "output_type": "declare the fields of the results with schema=...",
    "key_type": "leave it out: the types of the key columns are known",
    "type_info": "declare the fields with schema=...",
    "state_type": "the type is the second argument",
    "source_name": "the name of an operator is its uid",
    "name": "the name of an operator is its uid",
    "watermark_strategy": "call assign_timestamps_and_watermarks(strategy) behind it",
    "result_type": "declare the fields of the results with schema=...",
}
