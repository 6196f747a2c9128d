"""Operators that take whole batches."""

import pyarrow as pa
import pytest

from engine.core.errors import UserFunctionError
from engine.runtime.operators.columnar import MapBatches
from tests.fakes import Collected, batch, context

SCHEMA = pa.schema([("x", pa.int64())])


def test_a_function_of_batches_that_raises_is_told_with_the_number_of_its_batch() -> None:
    def refuses_two(rows: pa.RecordBatch) -> pa.RecordBatch:
        if rows.num_rows == 2:
            raise ValueError("told to")
        return rows

    operator = MapBatches(refuses_two, SCHEMA)
    operator.open(context("doubled"), None)
    operator.process(batch([{"x": 1}], SCHEMA), Collected())
    with pytest.raises(UserFunctionError, match=r"operator 'doubled', subtask 0, batch 2 \(2 records\): ValueError"):
        operator.process(batch([{"x": 1}, {"x": 2}], SCHEMA), Collected())
