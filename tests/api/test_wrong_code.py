"""Goal: code that can't be right is refused when the job is built, in one sentence that says where, and what to write.

Each case is the body of a job, as an author writes it, and the message. The last line of the body is the wrong one: the
message ends with the author's file and that line. The second table holds what only a record can show.
"""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from engine.api import JobError
from engine.host.launch import LaunchOptions
from engine.process.loading import load_job
from engine.testing import JobFailed, run

HEAD = """
import polars as pl
from engine.api import *
from engine.connectors.files import CsvSource, JsonSource
from engine.connectors.generator import GeneratorSource
from engine.connectors.table import TableSink
from engine.testing import Checkpoint, Crash, ListSource

VIEW = "app string, user long, bytes long, at timestamp"
STRATEGY = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
TEN = TumblingEventTimeWindows.of("10 s")

def views(env, uid="views", schema=VIEW):
    return env.from_elements([], schema, uid)

def timed(env, uid="views"):
    return views(env, uid).assign_timestamps_and_watermarks(STRATEGY)

def windows(env):
    return timed(env).key_by("app").window(TEN)

class Late(KeyedProcessFunction):
    def process_element(self, value, context):
        return []

def job(env):
"""

WRONG = [
    # --- names of PyFlink and Spark ---
    (
        "env.add_source(None)",
        "a StreamEnvironment has no add_source(...): it is called from_source(source, schema, uid)",
    ),
    ("env.from_collection([1])", "it is called from_elements(rows, schema)"),
    ("env.readStream", "a StreamEnvironment has no readStream(...): write from_source(JsonSource("),
    ("env.set_max_parallelism(4)", "write env.max_parallelism = 128"),
    ("env.get_config().set_auto_watermark_interval(10)", "a StreamEnvironment has no get_config(...): leave it out"),
    ("env.disable_operator_chaining()", "slot_sharing_group(name) separates"),
    (
        "env.get_checkpoint_config()",
        "its options are arguments: enable_checkpointing(interval, mode=..., timeout=..., ...)",
    ),
    ("env.enable_checkpoints('1 s')", "no attribute 'enable_checkpoints'; did you mean 'enable_checkpointing'?"),
    (
        "env.from_source(JsonSource('/data'), WatermarkStrategy.for_monotonous_timestamps(), 'views')",
        "from_source takes a schema as its second argument: call assign_timestamps_and_watermarks(strategy) on",
    ),
    (
        "views(env).withWatermark('at', '10 seconds')",
        'write assign_timestamps_and_watermarks(WatermarkStrategy.for_bounded_out_of_orderness("10 s")',
    ),
    ("views(env).groupBy('app')", "a DataStream has no groupBy(...): it is called key_by(COLUMN)"),
    ("views(env).keyBy('app')", "it is called key_by"),
    ("views(env).flatMap(None)", "it is called flat_map"),
    ("views(env).withColumn('b', 1)", "write select(...) with the columns to keep"),
    ("views(env).writeStream", "write sink_to(TableSink(NAME), uid), which plain spark.read.parquet reads"),
    ("views(env).add_sink(None)", "it is called sink_to(sink, uid)"),
    ("views(env).dropDuplicates(['user'])", "with a KeyedProcessFunction, which keeps state per key"),
    ("views(env).map(lambda row: row).name('x')", "give it to the operator itself, as in map(function, uid=...)"),
    ("views(env).key_by('app').applyInPandasWithState()", "with a KeyedProcessFunction, which keeps state per key"),
    ("views(env).key_by('app').time_window('10 s')", "write window(TumblingEventTimeWindows.of"),
    ("windows(env).agg(n=1)", "it is called aggregate(n=count(), uid=...)"),
    ("STRATEGY.with_timestamp_assigner(None)", 'it is called with_timestamps("ts"): name the column'),
    (
        "from engine.api import StreamExecutionEnvironment",
        "engine.api has no StreamExecutionEnvironment: it is called Str",
    ),
    ("from engine.api import Types", 'engine.api has no Types: types are Spark DDL texts: "long"'),
    ("from engine.api import Time", 'durations are texts such as "10 s"'),
    ("from engine.api import sum", 'it is called total("column")'),
    ("from engine.api import CsvSource", "it is in engine.connectors.files"),
    ("from engine.api import TumblingEventTimeWindow", "did you mean 'TumblingEventTimeWindows'?"),
    ("env.execute('views')", "`weir run` executes a job by itself, so leave this call out; in a script write Str"),
    # --- arguments ---
    (
        "views(env).map(lambda row: row, output_type='long')",
        "DataStream.map has no argument 'output_type': declare the fields of the results with schema=...",
    ),
    (
        "views(env).map(lambda row: row, shema=VIEW)",
        "no argument 'shema'; did you mean 'schema'? (it takes function, sch",
    ),
    (
        "views(env).map(lambda row: row, on_error='skip')",
        "DataStream.map has no argument 'on_error': it is a call behind the operator, as in map(function).on_error(",
    ),
    (
        "views(env).map(lambda row: row, malformed='skip')",
        "only file sources have it; behind an operator call on_error(",
    ),
    ("views(env).key_by('app').sum('bytes')", "KeyedStream.sum also needs uid=... (a name of the operator that stays"),
    ("views(env).sink_to(TableSink('t'))", "DataStream.sink_to also needs uid=..."),
    ("TumblingEventTimeWindows.of()", "TumblingEventTimeWindows.of also needs size=..."),
    ("env.from_elements([])", "StreamEnvironment.from_elements also needs schema=... (the fields of its records"),
    # --- the sentences of issue 13 ---
    (
        """
        class Timed(MapFunction):
            def map(self, value):
                return value
            def on_timer(self, timestamp, context):
                return []
        views(env).map(Timed())
        """,
        "which map would never call: timers belong to keys, so write stream.key_by(...).process(...)",
    ),
    (
        """
        class Timed(ProcessWindowFunction):
            def process(self, key, context, elements):
                return []
            def on_timer(self, timestamp, context):
                return []
        windows(env).process(Timed(), uid="w")
        """,
        "which window 'w': process would never call: timers belong to keys",
    ),
    ("timed(env).key_by('app').window('1 s')", "window takes windows such as TumblingEventTimeWindows.of"),
    ("ValueStateDescriptor('m', int)", "a type is a pyarrow type or a Spark DDL type, not int: write 'long'"),
    ("windows(env).aggregate(s=total('app'), uid='w')", "window 'w': s=total(app) needs a number; 'app' is string"),
    ("views(env).key_by(lambda row: row['app'])", "key_by takes the names of columns, not a lambda: compute the key"),
    (
        "CsvSource('/data', quote=None)",
        "CsvSource, quote=None: it has to be one ASCII character; for files",
    ),
    ("CsvSource('/data', delimiter=';;')", "CsvSource, delimiter=';;': it has to be one ASCII character"),
    # --- columns and types ---
    ("views(env).key_by('ap')", "did you mean 'app'?"),
    ("views(env).select('app', 'byts')", "did you mean 'bytes'?"),
    ("views(env).where(pl.col('byts') > 1)", 'Did you mean "bytes"?'),
    ("JsonSource('events')", "'events' is not an absolute path: write one, because slots run in other folders"),
    ("GeneratorSource(len, rate=-1)", "the rate of a generator must be positive, not -1"),
    ("TableSink('../t')", "'../t' is not a valid table path: write one such as 'pv'"),
    ("views(env).key_by('app').sum('byte', uid='s')", "sum: there is no column 'byte'"),
    (
        "windows(env).aggregate(n=total('byte'), uid='w')",
        "window 'w': n=total(byte): there is no column 'byte'; the stre",
    ),
    ("windows(env).aggregate(n=count('users'), uid='w')", "window 'w': n=count(users): there is no column 'users'"),
    ("views(env).map(lambda row: row, 'n lnog')", "unknown type 'lnog'"),
    ("views(env).map(lambda row: row, int)", 'a Spark DDL string such as "id long, name string", not the class int'),
    ("OutputTag('late', int)", "OutputTag('late'): its schema is a pyarrow.Schema or a Spark DDL string"),
    # --- bad input ---
    ("TumblingEventTimeWindows.of('-1 s')", "the size of a window must be positive, not '-1 s'"),
    ("TumblingEventTimeWindows.of(-1)", "the size of a window must be positive, not -1"),
    ("SlidingEventTimeWindows.of('1 min', 0)", "the slide of a window must be positive, not 0"),
    ("EventTimeSessionWindows.with_gap('0 s')", "the gap of a window must be positive, not '0 s'"),
    (
        "TumblingEventTimeWindows.of('soon')",
        "the size of a window: 'soon' is not a duration: write a number and one of",
    ),
    ("windows(env).allowed_lateness(-1)", "allowed_lateness: -1 is negative: a duration must be 0 or more"),
    ("WatermarkStrategy.for_bounded_out_of_orderness('-1 s')", "for_bounded_out_of_orderness: '-1 s' is negative"),
    ("env.enable_checkpointing(0)", "enable_checkpointing: the checkpoint interval must be positive"),
    ("env.enable_checkpointing('1 s', timeout='x')", "enable_checkpointing, timeout: 'x' is not a duration"),
    ("timed(env).key_by('app').count_window(-3)", "count_window: the size is a number of records, 1 or more, not -3"),
    ("StateTtlConfig.new_builder('-1 s')", "StateTtlConfig.new_builder: '-1 s' is negative"),
    ("env.set_parallelism(0)", "the parallelism must be at least 1, not 0"),
    ("views(env).set_parallelism('2')", "the parallelism is a whole number, 1 or more, not '2'"),
    ("env.set_restart_strategy(FixedDelay)", "takes a strategy such as FixedDelay(3), not the class FixedDelay"),
    ("env.set_restart_strategy(FixedDelay(-1))", "attempts and delay_ms must be 0 or more"),
    (
        "env.enable_checkpointing('1 s', mode='exactly_once')",
        "takes CheckpointingMode.EXACTLY_ONCE or AT_LEAST_ONCE, not",
    ),
    (
        "TumblingEventTimeWindows('10 s')",
        "write TumblingEventTimeWindows.of('10 s', ...), not TumblingEventTimeWindows(",
    ),
    (
        "windows(env).aggregate(n=count, uid='w')",
        "window 'w': n=the function count is not an aggregate: write one such",
    ),
    ("windows(env).aggregate(n=top_n('bytes', 0), uid='w')", "top_n(bytes, 0): n is a whole number from 1 on"),
    ("windows(env).aggregate(n=quantile('bytes', 2), uid='w')", "2 is not a number from 0 to 1, such as 0.5"),
    ("env.from_elements([1], 'n long')", "element 0 is 1: a record is a dict, as in {'n': ...}"),
    ("env.from_elements({'n': 1}, 'n long')", "the elements are a dict: write a list of records, as in [{...}, {...}]"),
    ("JsonSource(5)", "the path of files is a text, as in '/data/events', not 5"),
    ("TableSink(5)", "TableSink(5): the path of a table is a text, as in TableSink('pv')"),
    ("GeneratorSource(None)", "a generator takes a function of record numbers that returns columns, not None"),
    (
        "views(env).assign_timestamps_and_watermarks(STRATEGY.with_timestamps('app'))",
        "assign_timestamps_and_watermarks: the event time column 'app' is a string; it must be a timestamp",
    ),
    ("views(env).assign_timestamps_and_watermarks(STRATEGY.with_timestamps('ts'))", "there is no column 'ts'"),
    (
        "timed(env).key_by('app').interval_join(timed(env, 'b').key_by('user')).between(0, 1).select(uid='j')",
        "interval_join needs keys of the same types, but it joins 'views' (job.py, line 14) by (app string) with",
    ),
    (
        "timed(env).join(timed(env, 'b')).where('app').equal_to('user').window(TEN).select(uid='j')",
        "needs keys of the same types, but it joins",
    ),
    (
        "timed(env).key_by('app').connect(timed(env, 'b').key_by('user'))",
        "connect needs keys of the same types, but the streams are keyed by (app string) and by (user int64)",
    ),
    (
        """
        class Twice(Late):
            def open(self, context):
                self.a = context.get_state(ValueStateDescriptor("seen", "long"))
                self.b = context.get_state(ValueStateDescriptor("seen", "string"))
        views(env).key_by("app").process(Twice(), uid="p")
        """,
        "Twice asks for the state 'seen' twice, as a value of int64",
    ),
    (
        "SlidingEventTimeWindows.of('1 d', 1)",
        "a record would be in 86400000 of them: write a longer slide, of 864 ms or more (a number without a unit is",
    ),
    ("SlidingProcessingTimeWindows.of('1 h', '1 ms')", "a record would be in 3600000 of them: write a longer slide"),
    (
        "TumblingEventTimeWindows.of('999999999 d')",
        "the size of a window is '999999999 d': write at most 1000 years; for one that never ends write GlobalWindows",
    ),
    ("views(env).key_by()", "key_by needs at least one column: write its name, as in key_by('app')"),
    # --- functions with other arguments ---
    (
        "views(env).map(lambda a, b: a)",
        "map: a lambda (job.py, line 27) must take (row): as in lambda row: {**row, ...}",
    ),
    ("views(env).filter(lambda: True)", "must take (row): as in lambda row: row['n'] > 0"),
    ("views(env).key_by('app').reduce(lambda row: row, uid='r')", "must take (left, right): as in lambda left, right:"),
    ("windows(env).reduce(lambda row: row, uid='r')", "must take (left, right): as in lambda left, right:"),
    (
        """
        class Upper(MapFunction):
            def map(self):
                return {}
        views(env).map(Upper())
        """,
        "map: Upper.map (job.py, line 28) must take (row): def map(self, row)",
    ),
    (
        "EventTimeSessionWindows.with_dynamic_gap(lambda row, time: 5)",
        "with_dynamic_gap: a lambda must take (record): as in lambda row: row['gap_ms']",
    ),
    (
        """
        class Half(Evictor):
            def evict_before(self, elements):
                elements.clear()
        windows(env).evictor(Half())
        """,
        "Half.evict_before (job.py, line 28) must take (elements, size, window, context): def evict_before(self, elem",
    ),
    (
        """
        class Idle(Evictor):
            def evict(self, elements):
                elements.clear()
        windows(env).evictor(Idle())
        """,
        "evictor: Idle removes nothing: write def evict_before(self, elements, size, window, context)",
    ),
    (
        """
        class Early(EventTimeTrigger):
            def on_element(self, element, window):
                return TriggerResult.FIRE
        windows(env).trigger(Early())
        """,
        "Early.on_element (job.py, line 28) must take (element, timestamp, window, context): def on_element(self, elem",
    ),
    (
        "timed(env).connect(timed(env, 'b')).map(lambda row: row)",
        "connect(...).map takes an object of a class that extends CoMapFunction, not a lambda",
    ),
    # --- patterns ---
    (
        "CEP.pattern(timed(env).key_by('app'), Pattern.begin('a').not_next('b').next('c'))",
        "pattern 'b' (job.py, line",
    ),
    (
        "CEP.pattern(timed(env).key_by('app'), Pattern.begin('a').not_followed_by('b').where(lambda r: True))",
        "waits for ever",
    ),
]


@pytest.mark.promise("H8")
@pytest.mark.parametrize(("code", "message"), WRONG, ids=[message[:70] for _, message in WRONG])
def test_wrong_code_is_told_what_to_write(
    code: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = textwrap.dedent(code).strip()
    source = HEAD + textwrap.indent(body, "    ") + "\n"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / f"wrong_{abs(hash(code))}"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "job.py").write_text(source)
    with pytest.raises(JobError) as caught:
        load_job(LaunchOptions(path=f"{package.name}.job:job"))
    said = str(caught.value)
    assert message in said
    assert said.endswith(f"(job.py, line {len(source.splitlines())})")
    assert "\n" not in said and "Traceback" not in said


RECORDS = '[{"app": "a", "n": 1}, {"app": "a", "n": 2}]'
WRONG_RECORDS = [
    (
        """
        class Returns(Late):
            def process_element(self, value, context):
                return value
        records(env).key_by("app").process(Returns(), uid="p").sink_to(TableSink("t"), uid="out")
        """,
        ": return a list of records, [] for none, or yield them",
    ),
    (
        "records(env).flat_map(lambda row: row).sink_to(TableSink('t'), uid='out')",
        ": return a list of records, [] for none, or yield them",
    ),
    (
        "records(env).map(lambda row: {**row, 'more': 1}, uid='m').sink_to(TableSink('t'), uid='out')",
        "its function returned the field 'more', which its results do not have (app string, n int64): declare",
    ),
    (
        "records(env).map(lambda row: {'app': row['app']}, uid='m').sink_to(TableSink('t'), uid='out')",
        "its function returned {'app': 'a'}, which has no field 'n': add it, or declare the fields",
    ),
    (
        "records(env).map(lambda row: 7, uid='m').sink_to(TableSink('t'), uid='out')",
        "its function returned 7 as a record; return a dict",
    ),
    # --- what only Python notices, when the function runs ---
    *(
        (f"records(env).map(lambda row: {{'n': {code}}}, 'n long').sink_to(TableSink('t'), uid='out')", message)
        for code, message in (
            ("row.n", "'dict' object has no attribute 'n': a record is a dict: its fields are read as in record['n']"),
            ("row[0]", "KeyError: 0: a record is a dict: its fields have names and no numbers, as in record['name']"),
            ("None + row['n']", "are None: write, for example, (state.value() or 0)"),
        )
    ),
    *(
        (
            f"""
            class Counts(KeyedProcessFunction):
                def open(self, context):
                    self.count = context.get_state(ValueStateDescriptor("count", "long"))
                    self.all = context.get_list_state(ListStateDescriptor("all", "long"))
                def process_element(self, value, context):
                    {code}
                    return []
            records(env).key_by("app").process(Counts(), uid="p").sink_to(TableSink("t"), uid="out")
            """,
            message,
        )
        for code, message in (
            ("self.count.value = 5", "object attribute 'value' is read-only: write update(value)"),
            ("self.count.value + 1", "a method is called with parentheses, as in state.value()"),
            ("self.count.update(self.count.value() + 1)", "a state without a value are None: write, for example, (sta"),
            ("self.all.append(1)", "has no attribute 'append': it has add, add_all, clear, get, update"),
            ("self.all.updat([1])", "has no attribute 'updat': did you mean 'update'?"),
            ("self.seen.update(1)", "has no attribute 'seen': set self.seen in open(self, context)"),
            ("context.get_state(None)", "call get_state(...) in open(self, context), and keep what it returns in self"),
            ("context.output(None, value)", "has no attribute 'output': write yield TAG, record"),
        )
    ),
    *(
        (
            f"""
            class Sum(AggregateFunction):
                def create_accumulator(self):
                    return 0
                def add(self, value, accumulator):
                    {add}
                def get_result(self, accumulator):
                    return {{"n": accumulator}}
                {merge}
            timed = records(env).assign_timestamps_and_watermarks(STRATEGY.with_timestamps("n")).key_by("app")
            summed = timed.window({windows}).aggregate(Sum(), accumulator_type="long", schema="n long", uid="w")
            summed.sink_to(TableSink("t"), uid="out")
            """,
            message,
        )
        for windows, merge in (
            ("TEN", ""),
            ("SlidingEventTimeWindows.of('10 s', '5 s')", "merge = lambda self, left, right: left + right"),
        )
        for add, message in (
            ("accumulator += 1", "add of Sum returned None: return the accumulator"),
            ("return [1]", "the window keeps int64 (accumulator_type), but its function returned [1]"),
        )
    ),
    (
        """
        class Half(Evictor):
            def evict_before(self, elements, size, window, context):
                return elements[: size // 2]
        timed = records(env).assign_timestamps_and_watermarks(STRATEGY.with_timestamps("n")).key_by("app")
        timed.window(TEN).evictor(Half()).aggregate(n=count(), uid="w").sink_to(TableSink("t"), uid="out")
        """,
        "which nobody looks at: remove records from the list that it is given, as in del elements[0], and return noth",
    ),
    (
        """
        timed = records(env).assign_timestamps_and_watermarks(STRATEGY.with_timestamps("n")).key_by("app")
        found = CEP.pattern(timed, Pattern.begin("a")).flat_select(lambda match: match["b"], uid="p")
        found.sink_to(TableSink("t"), uid="out")
        """,
        "the match has no pattern 'b': it has 'a'",
    ),
    (
        """
        times = records(env).select("app", at=pl.col("n") * 10**15)
        strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamps("at")
        timed = times.assign_timestamps_and_watermarks(strategy)
        timed.key_by("app").window(TEN).aggregate(n=count(), uid="w").sink_to(TableSink("t"), uid="out")
        """,
        "the event time column 'at' (int64) holds 1000000000000000, which is not between the years 1 and 9999",
    ),
]


@pytest.mark.promise("H8")
@pytest.mark.parametrize(("code", "message"), WRONG_RECORDS, ids=[message[:70] for _, message in WRONG_RECORDS])
def test_a_wrong_record_is_told_what_to_write(code: str, message: str, tmp_path: Path) -> None:
    source = HEAD + textwrap.indent(textwrap.dedent(code).strip(), "    ") + "\n"
    source += (
        f"\ndef records(env):\n    return env.from_source(ListSource({RECORDS}), 'app string, n long', 'records')\n"
    )
    made: dict[str, object] = {}
    exec(compile(source, str(tmp_path / "job.py"), "exec"), made)
    with pytest.raises(JobFailed) as caught:
        run(made["job"])  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_a_crash_without_checkpoints_begins_again(tmp_path: Path) -> None:
    """A lost slot is nobody's fault in the job, so it is replaced, and what was read before is read again."""
    source = HEAD + "    records = [{'n': 1}, Crash(), {'n': 2}]\n"
    source += "    env.from_source(ListSource(records), 'n long', 'r').sink_to(TableSink('t'), uid='out')\n"
    made: dict[str, object] = {}
    exec(compile(source, str(tmp_path / "job.py"), "exec"), made)
    ran = run(made["job"])  # type: ignore[arg-type]
    assert ran.restarts == 1 and [row["n"] for row in ran.rows("t")] == [1, 2]
