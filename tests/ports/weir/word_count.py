"""Counts words, and emits the new count of a word each time that it comes."""

from engine.api import StreamEnvironment
from engine.connectors.table import TableSink

TEXT = ["To be, or not to be,--that is the question:--", "Whether 'tis nobler in the mind to suffer"]


def split(row):
    for word in row["line"].lower().replace("--", " ").split():
        yield {"word": word.strip(",:'"), "n": 1}


def job(env: StreamEnvironment) -> None:
    lines = env.from_elements([{"line": line} for line in TEXT], "line string", uid="lines")
    counts = (
        lines.flat_map(split, schema="word string, n int")
        .key_by("word")
        .reduce(lambda left, right: {"word": left["word"], "n": left["n"] + right["n"]}, uid="counts")
    )
    counts.sink_to(TableSink("counts"), uid="out")
