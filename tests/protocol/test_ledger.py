"""The ledger's arithmetic and the equations that every checkpoint proves itself by."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.protocol import ledger
from engine.protocol.config import CheckpointingMode

EXACTLY, AT_LEAST = CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.AT_LEAST_ONCE
NAMES = st.sampled_from(["sent:e", "received:e", "source:s", "digest:out", "late:w"])
COUNTERS = st.dictionaries(NAMES, st.integers(0, 2**64 - 1))


@pytest.mark.promise("H1")
def test_aligned_what_was_sent_was_received() -> None:
    assert ledger.violations({"sent:e": 10, "received:e": 10}, {}, EXACTLY) == []


@pytest.mark.promise("H1")
def test_a_lost_or_doubled_row_is_a_sentence_that_names_the_edge() -> None:
    assert ledger.violations({"sent:a->b": 10, "received:a->b": 9}, {}, EXACTLY) == [
        "edge a->b: 10 rows sent, 9 received"
    ]
    assert ledger.violations({"sent:e": 10, "received:e": 11}, {}, EXACTLY) == ["edge e: 10 rows sent, 11 received"]


@pytest.mark.promise("H1")
def test_rows_sent_to_nobody_are_a_violation() -> None:
    assert ledger.violations({"sent:e": 1}, {}, EXACTLY) == ["edge e: 1 rows sent, 0 received"]


@pytest.mark.promise("H1")
def test_at_least_once_may_have_received_more_but_never_less() -> None:
    assert ledger.violations({"sent:e": 10, "received:e": 12}, {}, AT_LEAST) == []
    assert ledger.violations({"sent:e": 10, "received:e": 9}, {}, AT_LEAST) != []


@pytest.mark.promise("H1")
def test_only_what_this_attempt_added_counts() -> None:
    """At-least-once epochs received more than was sent; switching to exactly-once starts from there."""
    base = {"sent:e": 10, "received:e": 13}
    assert ledger.violations({"sent:e": 15, "received:e": 18}, base, EXACTLY) == []
    assert ledger.violations({"sent:e": 15, "received:e": 17}, base, EXACTLY) != []


@pytest.mark.promise("H1")
def test_digests_wrap_at_64_bits_and_counts_do_not() -> None:
    totals = ledger.total({"digest:out": 2**64 - 1, "sink:out": 2**64 - 1}, [{"digest:out": 3, "sink:out": 3}])
    assert totals == {"digest:out": 2, "sink:out": 2**64 + 2}


@pytest.mark.promise("H1")
@given(COUNTERS, st.lists(COUNTERS, max_size=5))
def test_the_difference_of_two_totals_is_what_was_added(base, parts) -> None:
    older = ledger.total({}, [base])
    newer = ledger.total(older, parts)
    added = ledger.total({}, parts)
    assert ledger.total(older, [ledger.difference(newer, older)]) == newer
    for name, value in ledger.difference(newer, older).items():
        assert value == added.get(name, 0)


@pytest.mark.promise("H1")
@given(st.lists(COUNTERS, max_size=5), st.randoms(use_true_random=False))
def test_totals_do_not_depend_on_the_order_of_subtasks(parts, random) -> None:
    shuffled = list(parts)
    random.shuffle(shuffled)
    assert ledger.total({}, parts) == ledger.total({}, shuffled)


def test_a_total_leaves_its_base_as_it_was() -> None:
    base = {"sent:e": 1}
    ledger.total(base, [{"sent:e": 5}])
    assert base == {"sent:e": 1}
