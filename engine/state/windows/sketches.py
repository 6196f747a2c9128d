"""What distinct counts and quantiles are made from, exact and approximate, and their results. No Python per row.

Approximate distinct counts are HyperLogLog over the key hash, with 4,096 registers and Ertl's estimator ("New
cardinality estimation algorithms for HyperLogLog sketches", 2017): the standard error is 1.6 %. Approximate quantiles
are DDSketch (Masson, Rim and Lee, VLDB 2019): values are counted in buckets whose bounds grow by a constant factor, so
a result is within 1 % of the value at its rank. Both merge without loss, in any order; libraries keep one object per
key, which would be Python per key and batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from engine.state.key_columns import as_doubles
from engine.state.key_hash import hash_columns
from engine.state.windows.grouping import Ints

Floats = npt.NDArray[np.float64]

_REGISTER_BITS = 12
_REGISTERS = 1 << _REGISTER_BITS
_MAX_RANK = 64 - _REGISTER_BITS + 1
_GROUPS_AT_A_TIME = 16_384

_ERROR = 0.01
_GAMMA = (1 + _ERROR) / (1 - _ERROR)
_SHIFT = 50_000  # more than the logarithm of any double to this base, so that codes of positive values are positive
_INFINITE = 2 * _SHIFT
_NAN = _INFINITE + 1


# --- distinct values ---


def registers(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Returns the register of each value, and its rank: the place of the first set bit of the rest of its hash."""
    hashes = hash_columns([values])
    rest = (hashes << np.uint64(_REGISTER_BITS)) >> np.uint64(11)  # 53 bits, which a double holds exactly
    _, exponents = np.frexp(rest.astype(np.float64))
    ranks = np.minimum(53 - exponents, _MAX_RANK - 1) + 1
    places = (hashes >> np.uint64(64 - _REGISTER_BITS)).astype(np.int32)
    return pa.array(places), pa.array(ranks.astype(np.int8))


def distinct_estimate(held: pa.Array) -> pa.Array:
    """Returns the estimated number of distinct values for each list of registers."""
    parts = [_estimates(held.slice(first, _GROUPS_AT_A_TIME)) for first in range(0, len(held), _GROUPS_AT_A_TIME)]
    return pa.array(np.rint(np.concatenate(parts)).astype(np.int64) if parts else [], pa.int64())


def _estimates(held: pa.Array) -> Floats:
    ranks, of = held.flatten().field("weight").to_numpy(), _parents(held)
    cells = np.bincount(of * (_MAX_RANK + 1) + ranks, minlength=len(held) * (_MAX_RANK + 1))
    counts = cells.reshape(len(held), _MAX_RANK + 1).astype(np.float64)  # registers by rank
    unset = _REGISTERS - counts.sum(axis=1)
    z = _REGISTERS * _tau(1 - counts[:, _MAX_RANK] / _REGISTERS)
    for rank in range(_MAX_RANK - 1, 0, -1):
        z = 0.5 * (z + counts[:, rank])
    with np.errstate(divide="ignore"):
        z += _REGISTERS * _sigma(unset / _REGISTERS)
        result: Floats = _REGISTERS**2 / (2 * np.log(2) * z)
    return result


def _sigma(x: Floats) -> Floats:
    x, y, z = x.copy(), 1.0, x.copy()
    for _ in range(64):
        x = x * x
        z = z + x * y
        y += y
    return np.where(x == 1, np.inf, z)


def _tau(x: Floats) -> Floats:
    y, z = 1.0, 1 - x
    start = x
    for _ in range(64):
        x = np.sqrt(x)
        y *= 0.5
        z = z - (1 - x) ** 2 * y
    return np.where((start == 0) | (start == 1), 0.0, z / 3)


# --- quantiles ---


def values_of(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Counts each value by itself."""
    return values, pa.array(np.ones(len(values), np.int64))


def buckets(values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Returns the bucket of each value as a number that has the order of the values, and the count 1."""
    given: Floats = as_doubles(values).to_numpy(zero_copy_only=False)
    size = np.abs(given)
    with np.errstate(divide="ignore", invalid="ignore"):
        codes = np.ceil(np.log(size) / np.log(_GAMMA)) + _SHIFT
    codes = np.where(size == 0, 0, np.where(np.isinf(size), _INFINITE, codes)) * np.where(given < 0, -1, 1)
    codes = np.where(np.isnan(given), _NAN, codes)
    return pa.array(codes.astype(np.int32)), pa.array(np.ones(len(given), np.int64))


def _of_buckets(codes: npt.NDArray[np.int32]) -> Floats:
    """Returns the value in the middle of each bucket."""
    size = np.abs(codes).astype(np.float64)
    with np.errstate(over="ignore"):
        middle = np.exp((size - _SHIFT) * np.log(_GAMMA)) * (2 / (_GAMMA + 1))
    middle = np.where(codes == 0, 0.0, np.where(size == _INFINITE, np.inf, middle)) * np.sign(codes)
    return np.where(codes == _NAN, np.nan, middle)


def exact_quantiles(held: pa.Array, wanted: Sequence[float]) -> list[pa.Array]:
    """Returns each quantile of each list of counted values, interpolated between the two nearest values."""
    values = as_doubles(held.flatten().field("value")).to_numpy(zero_copy_only=False)
    return _quantiles(held, values, wanted, interpolate=True)


def approx_quantiles(held: pa.Array, wanted: Sequence[float]) -> list[pa.Array]:
    """Returns each quantile of each list of counted buckets: the bucket at its rank, rounded down."""
    return _quantiles(held, _of_buckets(held.flatten().field("value").to_numpy()), wanted, interpolate=False)


def _quantiles(held: pa.Array, values: Floats, wanted: Sequence[float], interpolate: bool) -> list[pa.Array]:
    of, counts = _parents(held), held.flatten().field("weight").to_numpy()
    order = np.lexsort((values, of))
    values, ends = values[order], np.cumsum(counts[order])
    total = np.bincount(of, counts, len(held)).astype(np.int64)
    before, empty = np.cumsum(total) - total, total == 0
    results = []
    for quantile in wanted:
        place = quantile * np.maximum(total - 1, 0)
        down = np.floor(place).astype(np.int64)
        low = _at(values, ends, before + down)
        if interpolate:
            high, share = _at(values, ends, before + np.minimum(down + 1, np.maximum(total - 1, 0))), place - down
            with np.errstate(invalid="ignore"):
                low = np.where((share == 0) | (low == high), low, low + (high - low) * share)
        results.append(pa.array(low, mask=empty))
    return results


def _at(values: Floats, ends: Ints, ranks: Ints) -> Floats:
    """Returns the value of each rank among all values, each repeated as often as it counts."""
    if not len(values):
        return np.zeros(len(ranks))
    return values[np.minimum(np.searchsorted(ends, ranks, side="right"), len(values) - 1)]


def _parents(held: pa.Array) -> Ints:
    lengths = pc.list_value_length(held).fill_null(0).to_numpy()
    return np.repeat(np.arange(len(held)), lengths)
