"""Batches become records and records become batches, value by value."""

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from engine.runtime.operators.records import records_of


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC"])
def test_a_timestamp_becomes_the_same_moment_whatever_its_unit(unit: str, zone: str | None) -> None:
    moments = [datetime(1969, 12, 31, 23, 59, 59), datetime(2026, 11, 17, 4, 5, 6), None]
    kind = pa.timestamp(unit, zone)
    records = records_of(pa.record_batch([pa.array(moments, kind)], names=["at"]))
    zoned = [moment and moment.replace(tzinfo=UTC if zone else None) for moment in moments]
    assert [record["at"] for record in records] == zoned


def test_a_timestamp_that_no_record_can_hold_is_refused() -> None:
    """Microseconds of 64 bits end in the year 294,246: beyond it numpy alone would give some other moment."""
    with pytest.raises(pa.ArrowInvalid):
        records_of(pa.record_batch([pa.array([2**60], pa.timestamp("s"))], names=["at"]))
