"""Reads the log of a Weir table (`_spark_metadata`): which files each epoch published. Record n is epoch n + 1."""

from __future__ import annotations

import json
from pathlib import Path

COMPACT = ".compact"


def epoch_files(table: Path) -> dict[int, list[str]]:
    """Returns the names of each epoch's files. A compacted record repeats earlier files; they are not counted again."""
    published: dict[int, list[str]] = {}
    seen: set[str] = set()
    for number, path in sorted(_records(table).items()):
        names = [json.loads(line)["path"].rsplit("/", 1)[-1] for line in path.read_text().splitlines()[1:]]
        published[number + 1] = [name for name in dict.fromkeys(names) if name not in seen]
        seen.update(names)
    return published


def _records(table: Path) -> dict[int, Path]:
    files = (table / "_spark_metadata").iterdir()
    return {int(stem): path for path in files if (stem := path.name.removesuffix(COMPACT)).isdigit()}
