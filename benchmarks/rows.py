"""The rows of every benchmark: row n is a pure function of n, once in numpy and once in Spark SQL.

It needs only multiplications, shifts and masks, so that neither side spends its time on making rows.
"""

from __future__ import annotations

import numpy as np

from engine.connectors.generator import Columns

KEYS = 10_000
WINDOW_S = 10
BOUND_S = 1
START_US = 1_700_000_000_000_000
STEP_US = 1
"""A million rows per second of event time: a window of ten seconds holds ten million rows."""

ROWS_PER_WINDOW = WINDOW_S * 1_000_000 // STEP_US

_MULTIPLIER = 2_654_435_761
_MASK = 0x7FFF_FFFF

SCHEMA = "key long, value long, ts timestamp"


def window_rows(n: np.ndarray) -> Columns:
    mixed = mix(n)
    return {"key": keys_of(mixed), "value": mixed & 1023, "ts": n * STEP_US + START_US}


def mix(n: np.ndarray) -> np.ndarray:
    mixed = n * _MULTIPLIER
    mixed &= _MASK
    return mixed


def keys_of(mixed: np.ndarray) -> np.ndarray:
    """Returns the upper 20 of 31 bits, scaled to the number of keys."""
    key = mixed >> 11
    key *= KEYS
    key >>= 20
    return key


def many_keys_of(mixed: np.ndarray, keys: int) -> np.ndarray:
    """Returns the upper 24 bits, scaled to the number of keys: enough for a million."""
    return (mixed >> 7) * keys >> 24


def spark_columns(n: str = "n", keys: int | None = None) -> list[str]:
    """Returns the same rows as Spark SQL over a column of row numbers; with `keys`, keys as of `many_keys_of`."""
    mixed = f"(({n} * {_MULTIPLIER}L) & {_MASK}L)"
    upper, scale, lower = (11, KEYS, 20) if keys is None else (7, keys, 24)
    return [
        f"shiftright(shiftright({mixed}, {upper}) * {scale}L, {lower}) AS key",
        f"{mixed} & 1023L AS value",
        f"timestamp_micros({n} * {STEP_US}L + {START_US}L) AS ts",
    ]
