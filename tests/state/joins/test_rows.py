"""Keys of joins are compared as Spark does: NaN equals NaN, and 0.0 equals -0.0, in floats of both sizes."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from engine.state.joins.rows import same_keys
from engine.state.joins.windows import key_codes

NANS = {pa.float32(): np.array([0x7FC00001], np.uint32).view(np.float32)[0], pa.float64(): float("nan")}
OTHER_NANS = {
    pa.float32(): np.array([0xFFC00000], np.uint32).view(np.float32)[0],
    pa.float64(): np.array([0xFFF8000000000001], np.uint64).view(np.float64)[0],
}


@pytest.mark.promise("A8")
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()], ids=str)
def test_all_nans_are_one_key_and_both_zeros_are_another(kind: pa.DataType) -> None:
    dtype = kind.to_pandas_dtype()
    left = pa.array(np.array([NANS[kind], 0.0, -0.0, 1.5, NANS[kind], 0.0, 1.5], dtype))
    right = pa.array(np.array([OTHER_NANS[kind], -0.0, 0.0, 1.5, 1.5, NANS[kind], 2.5], dtype))
    assert left.type == right.type == kind
    wanted = [True, True, True, True, False, False, False]
    assert same_keys([left], [right]).tolist() == wanted
    ours, theirs = key_codes([left], [right])
    assert (ours == theirs).tolist() == wanted
    texts = pa.array(["a"] * len(left))
    assert same_keys([texts, left], [texts, right]).tolist() == wanted
    ours, theirs = key_codes([texts, left], [texts, right])
    assert (ours == theirs).tolist() == wanted
