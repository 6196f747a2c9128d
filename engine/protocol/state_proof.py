"""The proof of a rescale (H6): the state that the new subtasks restored is the state that the old ones had.

Each old subtask digests its state at the barrier of the rescale's checkpoint, each new one what it was given. A digest
is a sum over rows, so it depends neither on their order nor on the subtasks that hold them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from engine.protocol.ids import SubtaskId
from engine.protocol.redistribution import Distribution

_MODULUS = 1 << 64


class StateDigest(msgspec.Struct, frozen=True):
    """The rows of one state of one operator in one subtask. A state without rows has no digest."""

    uid: str
    name: str
    distribution: Distribution
    rows: int
    digest: int


class SubtaskDigests(msgspec.Struct, frozen=True):
    """The digests of all states of one subtask."""

    subtask: SubtaskId
    states: list[StateDigest]


class Proof(msgspec.Struct, frozen=True):
    """What the digests of all subtasks say. `differences` is empty if the state is the same before and after."""

    before: str
    after: str
    rows: int
    differences: list[str] = []


def prove(before: Iterable[SubtaskDigests], after: Iterable[SubtaskDigests], parallelism: Mapping[str, int]) -> Proof:
    """Compares the digests. `parallelism` is the new one, by uid.

    Keyed and split state has to be whole, each row in one subtask. Of union state every new subtask has to have all
    rows, of broadcast state one of the old subtasks' copies.
    """
    old, new = _by_state(before), _by_state(after)
    differences = []
    for state in sorted(old.keys() | new.keys(), key=str):
        uid, name, distribution = state
        had, have = old.get(state, []), new.get(state, [])
        if distribution in (Distribution.KEYED, Distribution.SPLIT):
            good = _total(had) == _total(have)
        elif distribution is Distribution.UNION:
            good = len(have) == parallelism.get(uid, 0) and all(_total([one]) == _total(had) for one in have)
        else:
            copies = {_total([one]) for one in had}
            good = len(have) == parallelism.get(uid, 0) and all(_total([one]) in copies for one in have)
        if not good:
            differences.append(
                f"{distribution.value} state {name!r} of operator {uid!r}: {_shown(had)} before, {_shown(have)} after"
            )
    whole = [one for ones in old.values() for one in ones if one.distribution in _MOVED]
    moved = [one for ones in new.values() for one in ones if one.distribution in _MOVED]
    return Proof(_hex(_total(whole)[1]), _hex(_total(moved)[1]), _total(whole)[0], differences)


_MOVED = (Distribution.KEYED, Distribution.SPLIT)
"""The state of which each row is in exactly one subtask. The digest that is shown covers it."""


def _by_state(subtasks: Iterable[SubtaskDigests]) -> dict[tuple[str, str, Distribution], list[StateDigest]]:
    found: dict[tuple[str, str, Distribution], list[StateDigest]] = {}
    for subtask in subtasks:
        for one in subtask.states:
            found.setdefault((one.uid, one.name, one.distribution), []).append(one)
    return found


def _total(digests: Iterable[StateDigest]) -> tuple[int, int]:
    """Returns the number of rows and the digest of all of them."""
    rows, total = 0, 0
    for one in digests:
        rows, total = rows + one.rows, (total + one.digest) % _MODULUS
    return rows, total


def _shown(digests: list[StateDigest]) -> str:
    rows, total = _total(digests)
    return f"{rows} rows with digest {_hex(total)} in {len(digests)} subtasks" if digests else "nothing"


def _hex(digest: int) -> str:
    return f"{digest:016x}"
