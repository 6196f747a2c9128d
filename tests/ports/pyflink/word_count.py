"""Counts words, and emits the new count of a word each time that it comes."""

import json

from pyflink.common import Types
from pyflink.datastream import StreamExecutionEnvironment

TEXT = ["To be, or not to be,--that is the question:--", "Whether 'tis nobler in the mind to suffer"]


def split(line):
    for word in line.lower().replace("--", " ").split():
        yield word.strip(",:'"), 1


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    lines = env.from_collection(TEXT, type_info=Types.STRING())
    counts = (
        lines.flat_map(split, output_type=Types.TUPLE([Types.STRING(), Types.INT()]))
        .key_by(lambda pair: pair[0], key_type=Types.STRING())
        .reduce(lambda left, right: (left[0], left[1] + right[1]))
    )
    with counts.execute_and_collect() as results:
        for word, count in sorted(results):
            print(json.dumps({"table": "counts", "word": word, "n": count}))


if __name__ == "__main__":
    main()
