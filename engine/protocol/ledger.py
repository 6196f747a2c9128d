"""The ledger: counters per edge, source and sink, and the equations that each checkpoint must satisfy.

Invariant: totals contain committed history only. Subtasks count from the start of their attempt, and the JobMaster adds
the totals of the epoch that the attempt was restored from. The counts of one epoch are the difference of two manifests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from engine.protocol.config import CheckpointingMode

Counters = dict[str, int]

_DIGEST_MODULUS = 1 << 64


def sent(edge: str) -> str:
    return f"sent:{edge}"


def received(edge: str) -> str:
    return f"received:{edge}"


def source_rows(uid: str) -> str:
    return f"source:{uid}"


def malformed_rows(uid: str) -> str:
    """Names the counter of malformed records: the source skips them or emits them as a side output.

    They are not among `source_rows`.
    """
    return f"malformed:{uid}"


def failed_rows(uid: str) -> str:
    """Names the counter of records that an operator left out because it could not process them (`on_error`)."""
    return f"failed:{uid}"


def source_digest(uid: str) -> str:
    """Names the digest of the rows that a source has read; only sources that are asked for it have one."""
    return f"digest:source:{uid}"


def all_read(totals: Mapping[str, int]) -> int:
    """Returns how many records all sources have read, malformed ones included."""
    return sum(rows for name, rows in totals.items() if name.startswith(("source:", "malformed:")))


SINK = "sink:"


def sink_rows(uid: str) -> str:
    return f"{SINK}{uid}"


def sink_digest(uid: str) -> str:
    return f"digest:{uid}"


def withheld_rows(uid: str) -> str:
    """Names the counter of rows that a sink wrote and that its gate kept out of the table: discarded, or dead letters.

    They are not among `sink_rows`, nor in the sink's digest.
    """
    return f"withheld:{uid}"


def withheld(uid: str, rows: int, digest: int) -> Counters:
    """Returns what is added to the totals for rows that are not published."""
    return {sink_rows(uid): -rows, sink_digest(uid): -digest, withheld_rows(uid): rows}


def late_rows(uid: str) -> str:
    return f"late:{uid}"


def by_uid(counter: Callable[[str], str], totals: Mapping[str, int]) -> Counters:
    """Returns this counter, such as `late_rows`, of each operator that has counted anything."""
    head = counter("")
    return {name.removeprefix(head): rows for name, rows in totals.items() if name.startswith(head)}


def user_count(uid: str, name: str) -> str:
    """Names a counter that a function keeps."""
    return f"user:{uid}:{name}"


def user_counts(uids: Iterable[str], totals: Mapping[str, int]) -> dict[str, Counters]:
    """Returns the counters of functions by operator and name."""
    found = {uid: by_uid(lambda name, uid=uid: user_count(uid, name), totals) for uid in uids}  # type: ignore[misc]
    return {uid: counts for uid, counts in found.items() if counts}


def untimed_rows(uid: str) -> str:
    """Names the counter of records without an event time: they are in no window."""
    return f"untimed:{uid}"


def add(totals: Counters, more: Mapping[str, int]) -> None:
    for name, value in more.items():
        result = totals.get(name, 0) + value
        totals[name] = result % _DIGEST_MODULUS if name.startswith("digest:") else result


def total(base: Mapping[str, int], parts: Iterable[Mapping[str, int]]) -> Counters:
    result = dict(base)
    for part in parts:
        add(result, part)
    return result


def difference(newer: Mapping[str, int], older: Mapping[str, int]) -> Counters:
    """Returns what was added between two totals."""
    return {
        name: (value - older.get(name, 0)) % _DIGEST_MODULUS
        if name.startswith("digest:")
        else value - older.get(name, 0)
        for name, value in newer.items()
    }


def violations(totals: Mapping[str, int], base: Mapping[str, int], mode: CheckpointingMode) -> list[str]:
    """Returns the edges whose equation does not hold for what this attempt added to `base`; empty if all hold.

    Exactly once: as many rows were received as were sent. At least once: as many or more were received, because a
    channel that is not blocked hands out records that follow its barrier.
    """
    found = []
    for name in totals:
        if not name.startswith("sent:"):
            continue
        edge = name.removeprefix("sent:")
        out = totals[name] - base.get(name, 0)
        got = totals.get(received(edge), 0) - base.get(received(edge), 0)
        holds = got == out if mode is CheckpointingMode.EXACTLY_ONCE else got >= out
        if not holds:
            found.append(f"edge {edge}: {out} rows sent, {got} received")
    return found
