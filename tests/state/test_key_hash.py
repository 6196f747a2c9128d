import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.state.key_groups import key_groups, subtask_of
from engine.state.key_hash import KEY_HASH_VERSION, NULL_HASH, hash_columns, hash_key

INT_TYPES = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
INT64 = st.integers(-(2**63), 2**63 - 1)
# Lengths around the 8-byte words, and some past a tile of many words.
TEXT = st.text(max_size=40) | st.builds(
    lambda unit, count: unit * count, st.sampled_from(["a", "é", "xyz"]), st.integers(0, 3000)
)
MICROS = st.integers(-(2**52), 2**52)

# Every kind of key column, with values of it.
KINDS: list[tuple[pa.DataType, st.SearchStrategy[object]]] = [
    *((t, st.integers(0, 127)) for t in INT_TYPES),
    (pa.int64(), INT64),
    (pa.bool_(), st.booleans()),
    (pa.float16(), st.floats(width=16).map(np.float16)),
    (pa.float32(), st.floats(width=32)),
    (pa.float64(), st.floats()),
    (pa.string(), TEXT),
    (pa.large_string(), TEXT),
    (pa.string_view(), TEXT),
    (pa.binary(), st.binary(max_size=40)),
    (pa.large_binary(), st.binary(max_size=40)),
    (pa.binary_view(), st.binary(max_size=40)),
    (pa.binary(0), st.just(b"")),
    (pa.binary(5), st.binary(min_size=5, max_size=5)),
    (pa.binary(20), st.binary(min_size=20, max_size=20)),
    (pa.date32(), st.dates()),
    (pa.date64(), st.dates()),
    (pa.time32("s"), st.integers(0, 86_399)),
    (pa.time64("ns"), st.integers(0, 86_399_999_999_999)),
    (pa.timestamp("ms"), MICROS),
    (pa.timestamp("us", "Europe/Berlin"), MICROS),
    (pa.timestamp("ns"), MICROS),
    (pa.duration("s"), st.integers(-1000, 1000)),
    (pa.decimal128(38, 6), st.decimals(-(10**30), 10**30, places=6)),
    (pa.null(), st.none()),
    (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["", "a", "a long word of 24 bytes"])),
    (pa.dictionary(pa.uint32(), pa.int64()), st.integers(0, 5)),
]
IDS = [f"{index}-{data_type}" for index, (data_type, _) in enumerate(KINDS)]


def hashes(values: Sequence[object], data_type: pa.DataType) -> list[int]:
    return hash_columns([pa.array(values, data_type)]).tolist()


# --- The format -------------------------------------------------------------------------------------------------------

GOLDEN: list[tuple[pa.DataType, object, int]] = [
    (pa.int64(), 0, 0xE220A8397B1DCDAF),
    (pa.int64(), 1, 0x910A2DEC89025CC1),
    (pa.int64(), -1, 0xE4D971771B652C20),
    (pa.int64(), 2**63 - 1, 0x2A67D7552E039EA7),
    (pa.uint64(), 2**64 - 2, 0xF3203E9039F4A821),
    (pa.int8(), 42, 0xBDD732262FEB6E95),
    (pa.bool_(), True, 0x910A2DEC89025CC1),
    (pa.float64(), 0.0, 0xE220A8397B1DCDAF),
    (pa.float64(), 1.5, 0xD6DAB18E1392608A),
    (pa.float32(), 0.1, 0xAA508B85B52FE89C),
    (pa.float64(), float("nan"), 0xC72971D82E15BB46),
    (pa.string(), "", 0xE220A8397B1DCDAF),
    (pa.string(), "a", 0x884289202E52A462),
    (pa.string(), "app1", 0x90CF4659F8433311),
    (pa.string(), "12345678", 0x7E8998DB1AB2D7CE),
    (pa.string(), "123456789", 0x7F586FCC95D3B2C3),
    (pa.string(), "Größe und Maß, 数据流", 0x24DB2EDCD921562A),
    (pa.string(), "0123456789abcdef" * 20, 0x1A391C6DCAD06FD5),
    (pa.binary(), b"\x00", 0x4396D60DBD8537AF),
    (pa.binary(), b"\xff" * 17, 0x5DAB0382C80E9F30),
    (pa.binary(16), bytes(range(16)), 0x012635B541BD4B2F),
    (pa.dictionary(pa.int8(), pa.string()), "app1", 0x90CF4659F8433311),
    (pa.date32(), date(2024, 2, 29), 0x519FD2457DAD158D),
    (pa.date64(), date(1969, 12, 31), 0xBA73863D71E274E8),
    (pa.time64("us"), time(12, 34, 56, 789), 0x5F5FB3DFFB3D0D82),
    (pa.timestamp("us", "UTC"), datetime(2024, 2, 29, 1, 2, 3, tzinfo=UTC), 0xE759F4F04E2BAB42),
    (pa.timestamp("ns"), 1_700_000_000_123_456_789, 0xC3D57EE72E6BBDFE),
    (pa.duration("ms"), timedelta(days=-1), 0x71A10EE1562BAFD4),
    (pa.decimal128(10, 2), Decimal("-12.50"), 0x0638BD7FCBA41EE0),
    (pa.decimal128(38, 0), Decimal(10**37 + 7), 0x7D731F84E13FD3AB),
    (pa.string(), None, 0x6B1F5A0C93D7E2A9),
]


def test_the_version_of_the_golden_values_is_1() -> None:
    assert KEY_HASH_VERSION == 1


@pytest.mark.parametrize(("data_type", "value", "expected"), GOLDEN)
def test_golden_values_never_change(data_type: pa.DataType, value: object, expected: int) -> None:
    """They are in every snapshot ever written. If this fails, mend the hash; never these numbers."""
    assert hashes([value], data_type) == [expected]
    assert hash_key((value,), [data_type]) == expected


def test_golden_values_of_several_columns_never_change() -> None:
    key, types = ("app1", 42, None), [pa.string(), pa.int64(), pa.float64()]
    assert hash_key(key[:2], types[:2]) == 0x2257D04942A13B19
    assert hash_key(key, types) == 0x2856CF4D025DA76C


# --- Only the logical value counts ------------------------------------------------------------------------------------


@given(st.integers(-(2**63), 2**64 - 1))
def test_every_integer_width_that_holds_a_value_hashes_it_alike(value: int) -> None:
    found = set()
    for data_type in INT_TYPES:
        bounds = np.iinfo(data_type.to_pandas_dtype())
        if bounds.min <= value <= bounds.max:
            found.update(hashes([value], data_type))
    assert len(found) == 1


@given(st.integers(-128, 127))
def test_small_integers_hash_alike_in_all_signed_widths(value: int) -> None:
    assert len({hashes([value], data_type)[0] for data_type in INT_TYPES[:4]}) == 1


@pytest.mark.parametrize(("data_type", "values"), KINDS, ids=IDS)
@settings(max_examples=25)
@given(data=st.data())
def test_a_slice_hashes_as_its_rows_do_in_the_whole(
    data_type: pa.DataType, values: st.SearchStrategy[object], data: st.DataObject
) -> None:
    array = pa.array(data.draw(st.lists(st.none() | values, max_size=20)), data_type)
    start = data.draw(st.integers(0, len(array)))
    end = data.draw(st.integers(start, len(array)))
    whole = hash_columns([array])
    assert whole.dtype == np.uint64
    assert hash_columns([array[start:end]]).tolist() == whole[start:end].tolist()


@pytest.mark.parametrize(("data_type", "values"), KINDS, ids=IDS)
@settings(max_examples=25)
@given(data=st.data())
def test_one_key_hashes_as_its_row_does_in_a_column(
    data_type: pa.DataType, values: st.SearchStrategy[object], data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.none() | values, min_size=1, max_size=5))
    assert [hash_key((row,), [data_type]) for row in rows] == hashes(rows, data_type)


@pytest.mark.parametrize(
    ("data_type", "values"), [kind for kind in KINDS if not pa.types.is_dictionary(kind[0]) and kind[0] != pa.null()]
)
@settings(max_examples=25)
@given(data=st.data())
def test_dictionary_encoded_and_plain_columns_hash_alike(
    data_type: pa.DataType, values: st.SearchStrategy[object], data: st.DataObject
) -> None:
    pool = data.draw(st.lists(st.none() | values, min_size=1, max_size=4))
    picks = data.draw(
        st.lists(st.none() | st.integers(0, len(pool) - 1), max_size=10)
    )  # longer or shorter than the pool
    encoded = pa.DictionaryArray.from_arrays(pa.array(picks, pa.int16()), pa.array(pool, data_type))
    plain = pa.array([None if pick is None else pool[pick] for pick in picks], data_type)
    assert hash_columns([encoded]).tolist() == hash_columns([plain]).tolist()
    assert hash_columns([encoded[1:]]).tolist() == hash_columns([plain[1:]]).tolist()


@given(st.lists(TEXT, max_size=8))
def test_strings_and_binaries_of_all_layouts_hash_alike(texts: list[str]) -> None:
    expected = hashes(texts, pa.string())
    encoded = [text.encode() for text in texts]
    assert all(hashes(texts, t) == expected for t in (pa.large_string(), pa.string_view()))
    assert all(hashes(encoded, t) == expected for t in (pa.binary(), pa.large_binary(), pa.binary_view()))


@given(st.binary(min_size=11, max_size=11))
def test_fixed_size_binary_hashes_as_binary(value: bytes) -> None:
    assert hashes([value], pa.binary(11)) == hashes([value], pa.binary())


@given(st.lists(TEXT, min_size=1, max_size=30))
def test_a_string_hashes_alike_whatever_else_is_in_its_batch(texts: list[str]) -> None:
    assert hashes(texts, pa.string()) == [hashes([text], pa.string())[0] for text in texts]


def test_very_long_strings_among_short_ones_hash_as_they_do_alone() -> None:
    texts = ["a", "b" * 1_000_003, "", "c" * 200_000, *(f"user-{i}" for i in range(20_000)), "d" * 131_081]
    assert hashes(texts, pa.string()) == [hash_key((text,), [pa.string()]) for text in texts]


@given(st.floats(width=32))
def test_a_float32_hashes_as_the_float64_of_its_value(value: float) -> None:
    assert hashes([value], pa.float32()) == hashes([value], pa.float64())


def test_both_zeros_are_one_key() -> None:
    for data_type in (pa.float16(), pa.float32(), pa.float64()):
        assert hash_columns([pa.array(np.array([-0.0]), pa.float64()).cast(data_type)]) == hashes([0.0], pa.float64())


@pytest.mark.filterwarnings("error")
def test_all_nans_are_one_key() -> None:
    bits = [0x7FF8000000000000, 0xFFF8000000000000, 0x7FF0000000000001, 0x7FFFFFFFFFFFFFFF]
    doubles = pa.array(np.array(bits, np.uint64).view(np.float64))
    floats = pa.array(np.array([0x7FC00000, 0xFFC00001, 0x7F800001], np.uint32).view(np.float32))
    assert {*hash_columns([doubles]).tolist(), *hash_columns([floats]).tolist()} == set(
        hashes([float("nan")], pa.float64())
    )


@pytest.mark.parametrize("data_type", [data_type for data_type, _ in KINDS], ids=IDS)
def test_null_has_one_hash_whatever_its_type(data_type: pa.DataType) -> None:
    assert hashes([None, None], data_type) == [NULL_HASH, NULL_HASH]
    assert hash_key((None,), [data_type]) == NULL_HASH


def test_what_lies_under_a_null_does_not_count() -> None:
    validity = pa.py_buffer(b"\x02")
    under = pa.Array.from_buffers(pa.int64(), 2, [validity, pa.py_buffer(struct.pack("<qq", 99, 7))])
    index_out_of_range = pa.Array.from_buffers(pa.int8(), 2, [validity, pa.py_buffer(b"\x63\x00")])
    assert hash_columns([under]).tolist() == hashes([None, 7], pa.int64())
    encoded = pa.DictionaryArray.from_arrays(index_out_of_range, pa.array([7]), safe=False)
    assert hash_columns([encoded]).tolist() == hashes([None, 7], pa.int64())


def test_buffers_need_not_be_aligned() -> None:
    buffer = pa.py_buffer(b"?" + struct.pack("<qqq", 1, -2, 3)).slice(1)
    assert hash_columns([pa.Array.from_buffers(pa.int64(), 3, [None, buffer])]).tolist() == hashes(
        [1, -2, 3], pa.int64()
    )
    decimals = pa.Array.from_buffers(pa.decimal128(9, 0), 1, [None, buffer.slice(0, 16)])
    assert hash_columns([decimals]).tolist() == hashes([Decimal(1 - (2 << 64))], pa.decimal128(38, 0))


@given(st.integers(-(2**31), 2**31 - 1), st.sampled_from(["UTC", "Asia/Tokyo", "-03:30"]))
def test_one_instant_hashes_alike_in_every_unit_and_zone(seconds: int, zone: str) -> None:
    units = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    found = {hashes([seconds * n], pa.timestamp(unit, tz))[0] for unit, n in units.items() for tz in (None, zone)}
    assert len(found) == 1
    assert len({hashes([seconds * n], pa.duration(unit))[0] for unit, n in units.items()}) == 1


def test_nanoseconds_within_a_microsecond_stay_distinct() -> None:
    assert len(set(hashes(range(-3_000, 3_000), pa.timestamp("ns")))) == 6_000
    assert hashes([-3_000, 3_000], pa.timestamp("ns")) == hashes([-3, 3], pa.timestamp("us"))


@given(st.integers(0, 86_399))
def test_one_time_of_day_hashes_alike_in_every_unit(seconds: int) -> None:
    types = {pa.time32("s"): 1, pa.time32("ms"): 10**3, pa.time64("us"): 10**6, pa.time64("ns"): 10**9}
    assert len({hashes([seconds * n], data_type)[0] for data_type, n in types.items()}) == 1


@given(st.dates())
def test_date32_and_date64_hash_alike(day: date) -> None:
    assert hashes([day], pa.date32()) == hashes([day], pa.date64())


@given(st.integers(1 - 10**28, 10**28 - 1), st.integers(0, 10))
def test_a_decimal_hashes_by_value_whatever_its_scale(unscaled: int, scale: int) -> None:
    value = Decimal(unscaled).scaleb(-scale)
    found = {hashes([value], pa.decimal128(38, at))[0] for at in range(scale, 11)}
    assert len(found) == 1


@given(st.lists(st.decimals(-(10**30), 10**30, places=6), unique=True))
def test_decimals_of_different_value_hash_differently(values: list[Decimal]) -> None:
    assert len(set(hashes(values, pa.decimal128(38, 6)))) == len(values)


# --- Several columns --------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.none() | INT64, st.none() | TEXT, st.none() | st.floats()), min_size=1, max_size=8))
def test_a_key_of_several_columns_hashes_alike_as_a_row_and_in_columns(rows: list[tuple[object, ...]]) -> None:
    types = [pa.int64(), pa.string(), pa.float64()]
    columns = [pa.array(column, t) for column, t in zip(zip(*rows, strict=True), types, strict=True)]
    assert hash_columns(columns).tolist() == [hash_key(row, types) for row in rows]


def test_the_order_of_columns_counts() -> None:
    one, two = pa.array(range(1, 1000)), pa.array(range(1001, 2000))
    assert not (hash_columns([one, two]) == hash_columns([two, one])).any()
    assert not (hash_columns([one]) == hash_columns([one, one])).any()


def test_where_one_column_ends_and_the_next_begins_counts() -> None:
    keys = [("ab", "c"), ("a", "bc"), ("abc", ""), ("", "abc"), (None, "abc"), ("abc", None)]
    assert len({hash_key(key, [pa.string(), pa.string()]) for key in keys}) == len(keys)


def test_hashing_changes_no_input() -> None:
    columns = [pa.array([1, 2, 3]), pa.array([1.5, -0.0, None]), pa.array([5, 6, 7], pa.timestamp("ns"))]
    before = [column.to_pylist() for column in columns]
    hash_columns(columns)
    assert [column.to_pylist() for column in columns] == before


# --- Spread -----------------------------------------------------------------------------------------------------------

SPREADS = {
    "sequential ints": pa.array(range(10_000)),
    "ints that share their low bits": pa.array([i << 20 for i in range(10_000)]),
    "short strings": pa.array([f"user-{i}" for i in range(10_000)]),
    "strings that differ in the middle": pa.array([f"https://example.com/{i:05}/index.html" for i in range(10_000)]),
    "zero bytes of every length": pa.array([b"\0" * i for i in range(10_000)]),
    "days": pa.array(range(10_000), pa.date32()),
    "whole floats": pa.array([float(i) for i in range(10_000)]),
    "amounts": pa.array([Decimal(i) / 100 for i in range(10_000)], pa.decimal128(10, 2)),
}


@pytest.mark.parametrize("name", SPREADS)
def test_regular_keys_spread_evenly_over_the_key_groups(name: str) -> None:
    found = hash_columns([SPREADS[name]])
    assert len(np.unique(found)) == 10_000
    expected = 10_000 / 128
    chi_square = float(((np.bincount(key_groups(found, 128), minlength=128) - expected) ** 2 / expected).sum())
    assert 70 < chi_square < 200  # 127 degrees of freedom: 127 ± 16; a hash too even is no better than one too uneven


def test_a_flipped_input_bit_flips_each_output_bit_about_half_the_time() -> None:
    keys = np.random.default_rng(7).integers(0, 256, (1_000, 20), dtype=np.uint8)
    plain = hash_columns([pa.array([key.tobytes() for key in keys])])
    for bit in range(0, 160, 7):
        flipped = keys.copy()
        flipped[:, bit // 8] ^= 1 << bit % 8
        changed = plain ^ hash_columns([pa.array([key.tobytes() for key in flipped])])
        assert abs(np.unpackbits(changed.view(np.uint8)).reshape(-1, 64).mean(axis=0) - 0.5).max() < 0.1


@pytest.mark.promise("A3")
@given(st.lists(TEXT, min_size=1, max_size=20), st.integers(1, 128), st.randoms(use_true_random=False))
def test_the_same_key_goes_to_the_same_subtask_from_any_batch_and_any_encoding(
    keys: list[str], parallelism: int, chance: object
) -> None:
    def subtasks(column: pa.Array) -> list[int]:
        return subtask_of(key_groups(hash_columns([column]), 128), parallelism, 128).tolist()

    home = dict(zip(keys, subtasks(pa.array(keys)), strict=True))
    shuffled = [*keys, *keys]
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    plain = pa.array(shuffled)
    for column in (plain, plain[3:], plain.dictionary_encode(), plain.cast(pa.large_string())):
        assert subtasks(column) == [home[key] for key in column.to_pylist()]
    assert [subtask_of(hash_key((key,), [pa.string()]) % 128, parallelism, 128) for key in keys] == subtasks(
        pa.array(keys)
    )


# --- What cannot be a key ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data_type",
    [
        pa.list_(pa.int64()),
        pa.struct([("a", pa.int64())]),
        pa.map_(pa.string(), pa.int64()),
        pa.dictionary(pa.int8(), pa.list_(pa.int64())),
        pa.decimal256(50, 2),
        pa.month_day_nano_interval(),
    ],
)
def test_other_types_are_refused_with_the_types_that_can_be_keys_even_without_rows(data_type: pa.DataType) -> None:
    with pytest.raises(
        TypeError, match="cannot be a key; a key column is one of integers, bool, floats, decimal128, string"
    ):
        hash_columns([pa.nulls(0, data_type)])
    with pytest.raises(TypeError, match="cannot be a key"):
        hash_key((None,), [data_type])


@pytest.mark.parametrize(("data_type", "values"), KINDS, ids=IDS)
def test_a_batch_without_rows_has_no_hashes(data_type: pa.DataType, values: object) -> None:
    found = hash_columns([pa.nulls(0, data_type)])
    assert found.dtype == np.uint64
    assert len(found) == 0


def test_a_key_without_columns_or_with_uneven_ones_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one column"):
        hash_columns([])
    with pytest.raises(ValueError, match=r"differ in length: \[1, 2\]"):
        hash_columns([pa.array([1]), pa.array([1, 2])])
    with pytest.raises(ValueError, match="a key of 2 values does not fit 1 key columns"):
        hash_key((1, 2), [pa.int64()])


def test_an_int_that_its_column_cannot_hold_is_refused() -> None:
    with pytest.raises(pa.ArrowInvalid):
        hash_key((300,), [pa.int8()])
    with pytest.raises((pa.ArrowInvalid, OverflowError)):
        hash_key((2**63,), [pa.int64()])
