"""`KeyedRows` does what a plain list of rows does, whatever is taken, and a snapshot does not change afterwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.state.joins import keyed_rows
from engine.state.joins.keyed_rows import KeyedRows

SCHEMA = pa.schema([("h", pa.int64()), ("n", pa.int64())])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.integers(0, 6), max_size=8)),
        st.tuples(st.just("take"), st.sets(st.integers(0, 7), max_size=4)),
        st.tuples(st.just("freeze"), st.none()),
    ),
    max_size=30,
)


@pytest.mark.promise("C3")
@given(STEPS)
def test_rows_are_taken_once_oldest_first_and_a_snapshot_stays_as_it_was(steps: list[tuple[str, Any]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyed_rows, "FANOUT", 2)
        rows, model, frozen, n = KeyedRows(SCHEMA), list[tuple[int, int]](), [], 0
        for what, given_ in steps:
            if what == "append":
                new = [(of, n + place) for place, of in enumerate(given_)]
                n += len(new)
                model += new
                columns = [pa.array([row[side] for row in new], pa.int64()) for side in (0, 1)]
                rows.append(pa.record_batch(columns, schema=SCHEMA), np.array(given_, np.uint64))
            elif what == "take":
                taken = rows.take(np.array(sorted(given_), np.uint64)).to_pylist()
                for of in given_:
                    got = [row["n"] for row in taken if row["h"] == of]
                    assert got == [number for hash_, number in model if hash_ == of]
                assert len(taken) == sum(of in given_ for of, _ in model)
                model = [row for row in model if row[0] not in given_]
            else:
                frozen.append((rows.freeze(), sorted(model)))
            assert len(rows) == len(model)
        for table, wanted in [*frozen, (rows.freeze(), sorted(model))]:
            got = [(row["h"], row["n"]) for row in table().to_pylist()]
            assert sorted(got, key=lambda row: row[0]) == wanted, "the rows of a key are in the order of arrival"
