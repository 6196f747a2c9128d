"""PyFlink's DataStream API: makes rows of a sequence in Python, keeps a running sum in ValueState, discards it."""

import sys

from common import Tally, key_of, value_of
from pyflink.common import Configuration, Types, WatermarkStrategy
from pyflink.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from pyflink.datastream.connectors.number_seq import NumberSequenceSource
from pyflink.datastream.state import ValueStateDescriptor

rows, folder = int(sys.argv[1]), sys.argv[2]


class RunningSum(KeyedProcessFunction):
    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))
        self.tally = Tally(folder, rows // 4)

    def process_element(self, value, ctx):
        total = (self.sum.value() or 0) + value[1]
        self.sum.update(total)
        self.tally.add(1)
        yield value[0], value[1], total

    def close(self):
        self.tally.write()


configuration = Configuration()
configuration.set_string("execution.checkpointing.interval", "1 s")
configuration.set_string("execution.checkpointing.dir", f"file://{folder}/checkpoints")
configuration.set_string("python.executable", sys.executable)
configuration.set_string("python.client.executable", sys.executable)
# Python's cache holds the state of every key: with the default of 1,000 entries each access would call the JVM.
configuration.set_string("python.state.cache-size", "20000")
configuration.set_string("python.fn-execution.bundle.size", "10000")
configuration.set_string("python.fn-execution.bundle.time", "1000")
configuration.set_string("taskmanager.memory.process.size", "4 g")
env = StreamExecutionEnvironment.get_execution_environment(configuration)
env.set_parallelism(2)
numbers = env.from_source(NumberSequenceSource(0, rows - 1), WatermarkStrategy.no_watermarks(), "rows", Types.LONG())
made = numbers.map(lambda n: (key_of(n), value_of(n)), Types.TUPLE([Types.LONG(), Types.LONG()]))
keyed = made.key_by(lambda row: row[0], Types.LONG())
sums = keyed.process(RunningSum(), Types.TUPLE([Types.LONG(), Types.LONG(), Types.LONG()]))
sums.filter(lambda row: False).print()
env.execute("rows")
