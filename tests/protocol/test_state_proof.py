"""The proof of a rescale: what the new subtasks restored is what the old ones had, however it is distributed."""

from __future__ import annotations

import pytest

from engine.protocol.ids import SubtaskId
from engine.protocol.redistribution import Distribution
from engine.protocol.state_proof import StateDigest, SubtaskDigests, prove

KEYED, SPLIT, UNION, BROADCAST = (
    Distribution.KEYED,
    Distribution.SPLIT,
    Distribution.UNION,
    Distribution.BROADCAST,
)
LARGE = 2**64 - 1


def held(index: int, *states: tuple[Distribution, int, int]) -> SubtaskDigests:
    return SubtaskDigests(
        SubtaskId("pv", index), [StateDigest("pv", "s", how, rows, sum_) for how, rows, sum_ in states]
    )


@pytest.mark.promise("H6")
@pytest.mark.parametrize("how", [KEYED, SPLIT])
def test_rows_that_moved_between_subtasks_are_the_same_state(how: Distribution) -> None:
    before = [held(0, (how, 3, LARGE)), held(1, (how, 2, 7))]
    after = [held(0, (how, 1, 1)), held(1, (how, 1, 2)), held(2, (how, 3, 3))]
    proof = prove(before, after, {"pv": 3})
    assert not proof.differences
    assert proof.before == proof.after == "0000000000000006" and proof.rows == 5


@pytest.mark.promise("H6")
@pytest.mark.parametrize(
    "after",
    [
        [held(0, (KEYED, 4, 10))],
        [held(0, (KEYED, 5, 11))],
        [],
        [held(0, (KEYED, 5, 10)), held(1, (KEYED, 5, 10))],
        [held(0, (SPLIT, 5, 10))],
    ],
    ids=["a row is lost", "a row is another", "all is lost", "a row is doubled", "it is dealt out otherwise"],
)
def test_other_rows_are_a_difference_that_names_operator_and_state(after: list[SubtaskDigests]) -> None:
    proof = prove([held(0, (KEYED, 5, 10))], after, {"pv": 2})
    assert "keyed state 's' of operator 'pv': 5 rows with digest 000000000000000a in 1 subtasks before" in "".join(
        proof.differences
    )


def test_state_that_appears_from_nowhere_is_a_difference() -> None:
    assert prove([], [held(0, (KEYED, 1, 1))], {"pv": 1}).differences


@pytest.mark.promise("H6")
def test_union_state_is_whole_in_every_new_subtask() -> None:
    before = [held(0, (UNION, 2, 20)), held(1, (UNION, 1, 3))]
    whole = (UNION, 3, 23)
    assert not prove(before, [held(0, whole), held(1, whole), held(2, whole)], {"pv": 3}).differences
    assert prove(before, [held(0, whole), held(1, whole)], {"pv": 3}).differences
    assert prove(before, [held(0, whole), held(1, (UNION, 2, 20))], {"pv": 2}).differences


@pytest.mark.promise("H6")
def test_broadcast_state_is_a_copy_of_an_old_subtasks() -> None:
    copy = (BROADCAST, 4, 44)
    before = [held(0, copy), held(1, copy)]
    assert not prove(before, [held(0, copy), held(1, copy), held(2, copy)], {"pv": 3}).differences
    assert prove(before, [held(0, copy), held(1, (BROADCAST, 3, 33))], {"pv": 2}).differences
    assert prove(before, [held(0, copy), held(1, copy)], {"pv": 3}).differences, "one of the new subtasks has none"


def test_what_every_subtask_has_does_not_count_in_the_digest_that_is_shown() -> None:
    before = [held(0, (KEYED, 1, 5), (UNION, 1, 9))]
    after = [held(0, (UNION, 1, 9)), held(1, (KEYED, 1, 5), (UNION, 1, 9))]
    proof = prove(before, after, {"pv": 2})
    assert not proof.differences and proof.before == proof.after == "0000000000000005"
