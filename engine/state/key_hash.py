"""The key hash: 64 bits per row over the key columns. It decides the key group, and so the subtask, of a record.

Invariant: the hash is a function of the logical key and of nothing else. Integer widths, dictionary or plain encoding,
32- or 64-bit offsets, slicing, batch boundaries, time units and zones, and decimal scales do not change it; -0.0 hashes
as 0.0, every NaN as one NaN, every null as `NULL_HASH` whatever its type. A string hashes as the binary of its UTF-8
bytes. An integer, a float and a decimal of the same number need not hash alike.

The hash is part of the snapshot format: state is filed under key groups, so a change of any result makes every snapshot
unreadable. The golden values in `tests/state/test_key_hash.py` never change; another hash would be another version.

The hash is not keyed with a secret: it spreads keys evenly, but does not resist deliberate collisions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import types as pat

KEY_HASH_VERSION = 1
NULL_HASH = 0x6B1F_5A0C_93D7_E2A9

Hashes = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

# splitmix64: a bijection of 64 bits in which every input bit moves every output bit.
_GAMMA = 0x9E37_79B9_7F4A_7C15
_MUL_1 = 0xBF58_476D_1CE4_E5B9
_MUL_2 = 0x94D0_49BB_1331_11EB
# Odd multipliers that keep column order, string length, word position and sub-microsecond digits apart.
_COLUMN = 0xD6E8_FEB8_6659_FD93
_LENGTH = 0xA076_1D64_78BD_642F
_POSITION = 0xE703_7ED1_A0B4_28DB
_SUB_MICRO = 0x8EBC_6AF0_9C88_C6E3
_U64 = (1 << 64) - 1

# Rows mixed at a time: a block and its scratch stay in the L2 cache (measured: 2.5 times faster than a whole batch).
_BLOCK = 16_384

_WORD_MASKS: Hashes = np.array([(1 << (8 * size)) - 1 for size in range(9)], np.uint64)
_MICROS_PER = {"s": 1_000_000, "ms": 1_000, "us": 1}
_MILLIS_PER_DAY = 86_400_000
_MERSENNE_61 = (1 << 61) - 1

_KEY_TYPES = (
    "integers, bool, floats, decimal128, string, binary, fixed-size binary, date, time, timestamp, duration, null, "
    "or a dictionary of these"
)
_INTEGERS = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())
_INT_RANGES = {t.id: range(int(i.min), int(i.max) + 1) for t in _INTEGERS for i in [np.iinfo(t.to_pandas_dtype())]}
_STRING_IDS = frozenset(t.id for t in (pa.string(), pa.large_string(), pa.string_view()))


def hash_columns(columns: Sequence[pa.Array]) -> Hashes:
    """Hashes each row of the key columns, in their order. The caller may change the returned array."""
    if not columns:
        raise ValueError("a key needs at least one column")
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"key columns differ in length: {[len(column) for column in columns]}")
    acc = _hash_column(columns[0])
    for column in columns[1:]:
        acc *= np.uint64(_COLUMN)
        acc += _hash_column(column)
        _mix(acc)
    return acc


def hash_key(values: tuple[object, ...], types: Sequence[pa.DataType]) -> int:
    """Hashes one key, for the row lane. The result equals `hash_columns` of one-row columns."""
    if not values or len(values) != len(types):
        raise ValueError(f"a key of {len(values)} values does not fit {len(types)} key columns")
    acc = _hash_value(values[0], types[0])
    for value, data_type in zip(values[1:], types[1:], strict=True):
        acc = _mix_one(acc * _COLUMN + _hash_value(value, data_type))
    return acc


def _hash_value(value: object, data_type: pa.DataType) -> int:
    """Hashes ints and strings, nearly all keys, in Python: 20 times faster than numpy on one row. Others go through
    `_hash_column`."""
    if type(value) is int:
        if value in _INT_RANGES.get(data_type.id, ()):
            return _mix_one(value)
    elif type(value) is str and data_type.id in _STRING_IDS:
        data = value.encode()
        acc = int.from_bytes(data[:8], "little") + len(data) * _LENGTH
        for start in range(8, len(data), 8):
            acc += _mix_one(int.from_bytes(data[start : start + 8], "little") + start // 8 * _POSITION)
        return _mix_one(acc)
    if pat.is_dictionary(data_type):
        return _hash_value(value, data_type.value_type)
    return int(_hash_column(pa.array([value], type=data_type))[0])


def _hash_column(array: pa.Array) -> Hashes:
    if pat.is_dictionary(array.type):
        return _hash_dictionary(array)
    array = _without_views(array)
    hashes = _hash_slots(array)
    if array.null_count:
        hashes[_null_mask(array)] = NULL_HASH
    return hashes


def _hash_slots(array: pa.Array) -> Hashes:
    """Hashes the value buffers. The values under nulls are arbitrary; the caller replaces their hashes."""
    data_type = array.type
    if pat.is_null(data_type):
        return np.full(len(array), NULL_HASH, np.uint64)
    if pat.is_integer(data_type):
        words = _values(array, data_type.to_pandas_dtype()).astype(np.uint64)
    elif pat.is_boolean(data_type):
        words = _values(array.cast(pa.uint8()), np.uint8).astype(np.uint64)
    elif pat.is_floating(data_type):
        words = _float_words(_values(array, data_type.to_pandas_dtype()))
    elif pat.is_date32(data_type):
        words = _values(array, np.int32).astype(np.uint64) * np.uint64(_MILLIS_PER_DAY)
    elif pat.is_date64(data_type):
        words = _values(array, np.int64).astype(np.uint64)
    elif pat.is_timestamp(data_type) or pat.is_time(data_type) or pat.is_duration(data_type):
        ticks = _values(array, np.int32 if pat.is_time32(data_type) else np.int64)
        words = _micro_words(ticks.astype(np.int64), data_type.unit)
    elif pat.is_decimal128(data_type):
        words = _decimal_words(array, data_type.scale)
    elif pat.is_fixed_size_binary(data_type):
        return _hash_fixed_size(array, data_type.byte_width)
    elif pat.is_string(data_type) or pat.is_binary(data_type):
        return _hash_variable_size(array, np.int32)
    elif pat.is_large_string(data_type) or pat.is_large_binary(data_type):
        return _hash_variable_size(array, np.int64)
    else:
        raise TypeError(f"a column of type {data_type} cannot be a key; a key column is one of {_KEY_TYPES}")
    _mix(words)
    return words


def _hash_dictionary(array: pa.Array) -> Hashes:
    indices, dictionary = array.indices, _without_views(array.dictionary)
    if len(dictionary) > len(indices):  # a small slice of a large dictionary: hash only the used values
        return _hash_column(dictionary.take(indices))
    table = np.append(_hash_column(dictionary), np.uint64(NULL_HASH))
    slots = _values(indices, indices.type.to_pandas_dtype()).astype(np.int64)
    if indices.null_count:
        slots[_null_mask(indices)] = len(dictionary)
    return table[slots]


def _float_words(values: npt.NDArray[Any]) -> Hashes:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        doubles = values.astype(np.float64)
        doubles += 0.0  # -0.0 + 0.0 is 0.0
    doubles[np.isnan(doubles)] = np.nan
    return doubles.view(np.uint64)


def _micro_words(ticks: Ints, unit: str) -> Hashes:
    """Returns the time in microseconds. Nanoseconds that are not whole microseconds are mixed in separately."""
    if unit != "ns":
        ticks *= _MICROS_PER[unit]
        return ticks.view(np.uint64)
    micros = ticks // 1_000
    ticks -= micros * 1_000
    words = ticks.view(np.uint64)
    words *= np.uint64(_SUB_MICRO)
    words += micros.view(np.uint64)
    return words


def _decimal_words(array: pa.Array, scale: int) -> Hashes:
    """Returns unscaled * 10**-scale modulo the prime 2**61 - 1, like Python's hash: 1.1 and 1.10 are one value."""
    prime = np.uint64(_MERSENNE_61)
    raw = _values(array, np.dtype("V16")).view(np.uint64).reshape(-1, 2)
    high = np.mod(raw[:, 1].view(np.int64), _MERSENNE_61).view(np.uint64)
    residue = ((high << np.uint64(3)) % prime + raw[:, 0] % prime) % prime  # 2**64 is 8 modulo the prime
    factor = pow(10, -scale, _MERSENNE_61)
    # Multiplies two 61-bit numbers in halves of 31 bits; 2**61 is 1 modulo the prime, so high parts wrap round.
    low_31, low_30 = np.uint64((1 << 31) - 1), np.uint64((1 << 30) - 1)
    a1, a0 = residue >> np.uint64(31), residue & low_31
    b1, b0 = np.uint64(factor >> 31), np.uint64(factor & ((1 << 31) - 1))
    middle = a1 * b0 + a0 * b1
    words: Hashes = a1 * b1 * np.uint64(2) + a0 * b0
    words += (middle >> np.uint64(30)) + ((middle & low_30) << np.uint64(31))
    words %= prime
    return words


def _hash_variable_size(array: pa.Array, offset_type: type[np.signedinteger[Any]]) -> Hashes:
    count, buffers = len(array), array.buffers()
    if count == 0:
        return np.empty(0, np.uint64)
    width = np.dtype(offset_type).itemsize
    offsets = np.frombuffer(buffers[1], offset_type, count + 1, array.offset * width).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.frombuffer(buffers[2], np.uint8, last - first, first) if last > first else np.empty(0, np.uint8)
    lengths = np.diff(offsets)
    offsets -= first
    return _hash_bytes(data, offsets[:-1], lengths)


def _hash_fixed_size(array: pa.Array, width: int) -> Hashes:
    count = len(array)
    data = _values(array, np.dtype(("V", width))).view(np.uint8) if width else np.empty(0, np.uint8)
    return _hash_bytes(data, np.arange(count, dtype=np.int64) * width, np.full(count, width, np.int64))


def _hash_bytes(data: npt.NDArray[np.uint8], starts: Ints, lengths: Ints) -> Hashes:
    """Returns mix(word 0 + length + the sum of the mixed later words). A sum, so words may come in any grouping.

    Rows of more than 8 bytes are taken in tiles of (words, rows) of about one block: many short rows one word at a
    time, a few long rows many words at a time. So there is no Python per row or per word.
    """
    padded = np.zeros(data.size + 8, np.uint8)
    padded[: data.size] = data
    words_at: Hashes = np.ndarray((data.size + 1,), "<u8", padded, strides=(1,))  # the 8 bytes from each position
    acc = words_at[starts]
    acc &= _WORD_MASKS.take(lengths, mode="clip")
    acc += lengths.view(np.uint64) * np.uint64(_LENGTH)
    rows = np.flatnonzero(lengths > 8)
    done = 1  # the number of words done of every remaining row
    while rows.size:
        left = lengths.take(rows) - 8 * done
        steps = np.arange(max(1, min(_BLOCK // rows.size, -(-int(left.max()) // 8))))[:, np.newaxis]
        positions = starts.take(rows) + 8 * (steps + done)
        words = words_at[np.minimum(positions, data.size, out=positions)]
        words &= _WORD_MASKS.take(left - 8 * steps, mode="clip")
        words += (steps + done).view(np.uint64) * np.uint64(_POSITION)
        _mix(words.reshape(-1))
        if len(steps) > 1:  # some rows may have ended on the way
            words[left <= 8 * steps] = 0
        acc[rows] += words.sum(axis=0)
        rows = rows[left > 8 * len(steps)]
        done += len(steps)
    _mix(acc)
    return acc


def _mix(words: Hashes) -> None:
    """Applies splitmix64 to each word, in place."""
    scratch = np.empty(min(words.size, _BLOCK), np.uint64)
    for start in range(0, words.size, _BLOCK):
        block = words[start : start + _BLOCK]
        shifted = scratch[: block.size]
        block += np.uint64(_GAMMA)
        block ^= np.right_shift(block, np.uint64(30), out=shifted)
        block *= np.uint64(_MUL_1)
        block ^= np.right_shift(block, np.uint64(27), out=shifted)
        block *= np.uint64(_MUL_2)
        block ^= np.right_shift(block, np.uint64(31), out=shifted)


def _mix_one(word: int) -> int:
    word = (word + _GAMMA) & _U64
    word = ((word ^ word >> 30) * _MUL_1) & _U64
    word = ((word ^ word >> 27) * _MUL_2) & _U64
    return word ^ word >> 31


def _values(array: pa.Array, dtype: Any) -> npt.NDArray[Any]:
    """Returns the array's slice of its value buffer, without a copy."""
    dtype = np.dtype(dtype)
    if len(array) == 0:  # an empty array may have no buffer
        return np.empty(0, dtype)
    return np.frombuffer(array.buffers()[1], dtype, len(array), array.offset * dtype.itemsize)


def _without_views(array: pa.Array) -> pa.Array:
    """Casts string and binary views: their bytes lie in many buffers, and Arrow has no `take` for them."""
    if pat.is_string_view(array.type) or pat.is_binary_view(array.type):
        return array.cast(pa.large_binary())
    return array


def _null_mask(array: pa.Array) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = array.is_null().to_numpy(zero_copy_only=False)
    return mask
