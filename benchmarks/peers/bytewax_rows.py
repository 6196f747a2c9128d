"""Bytewax: makes rows in Python, keeps a running sum per key, discards it. `python -m bytewax.testing` runs it."""

import os

import bytewax.operators as op
from bytewax.dataflow import Dataflow
from bytewax.inputs import FixedPartitionedSource, StatefulSourcePartition
from bytewax.outputs import DynamicSink, StatelessSinkPartition
from common import Tally, key_of, value_of

ROWS = int(os.environ["PEER_ROWS"])
FOLDER = os.environ["PEER_FOLDER"]
SPLITS = 2
BATCH = 1000


class Rows(StatefulSourcePartition):
    def __init__(self, split, position):
        self._next = split if position is None else position

    def next_batch(self):
        if self._next >= ROWS:
            raise StopIteration
        numbers = range(self._next, min(ROWS, self._next + BATCH * SPLITS), SPLITS)
        self._next += BATCH * SPLITS
        return [{"key": key_of(n), "value": value_of(n)} for n in numbers]

    def snapshot(self):
        return self._next


class Source(FixedPartitionedSource):
    def list_parts(self):
        return [str(split) for split in range(SPLITS)]

    def build_part(self, step_id, for_part, resume_state):
        return Rows(int(for_part), resume_state)


class Discard(StatelessSinkPartition):
    def __init__(self):
        self._tally = Tally(FOLDER, ROWS // 8)

    def write_batch(self, items):
        self._tally.add(len(items))

    def close(self):
        self._tally.write()


class Sink(DynamicSink):
    def build(self, step_id, worker_index, worker_count):
        return Discard()


def running_sum(total, row):
    total = (total or 0) + row["value"]
    return total, {"key": row["key"], "value": row["value"], "sum": total}


flow = Dataflow("rows")
rows = op.input("rows", flow, Source())
keyed = op.key_on("keyed", rows, lambda row: str(row["key"]))
sums = op.stateful_map("sums", keyed, running_sum)
op.output("out", sums, Sink())
