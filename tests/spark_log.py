"""Reads the log of a Spark file sink by Spark's own rules (`CompactibleFileStreamLog`), for tests without Spark."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable


class Unreadable(AssertionError):
    """Spark would refuse to read the table."""


def spark_reads(names: Iterable[str], read: Callable[[str], bytes]) -> list[str] | None:
    """Returns the names of the files that Spark reads; None if the log has no record. `names`: of the log's files.

    Spark derives the interval of compact records from the last two, begins at the last one that is due by it, and needs
    every record from there on.
    """
    found = {int(name.removesuffix(".compact")): name for name in names if name[0].isdigit()}
    if not found:
        return None
    newest = max(found)
    compact = sorted(number for number, name in found.items() if name.endswith(".compact"))
    interval = compact[-1] - (compact[-2] if len(compact) > 1 else -1) if compact else newest + 2
    first = max(0, (newest + 1) // interval * interval - 1)
    if compact and first != compact[-1]:
        raise Unreadable(f"compact records {compact}: Spark looks for one at {first}")
    files: list[str] = []
    for number in range(first, newest + 1):
        if number not in found:
            raise Unreadable(f"record {number} of {sorted(found)} is missing")
        version, *lines = read(found[number]).decode().split("\n")
        assert version == "v1"
        files += [json.loads(line)["path"].rsplit("/", 1)[1] for line in lines]
    return files
