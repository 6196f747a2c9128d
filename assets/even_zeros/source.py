"""Texts of eight zeros and ones, digit by digit. Ten texts come at the same time."""

import numpy as np
import pyarrow as pa

from assets.generated import Generated, chance
from engine.connectors.generator import Columns

TOGETHER, LENGTH = 10, 8
DIGITS = pa.array(["0", "1"])


def digits(event: np.ndarray, seed: int) -> Columns:
    return {
        "text_id": event // (TOGETHER * LENGTH) * TOGETHER + event % TOGETHER,
        "digit": DIGITS.take(pa.array(chance(event, seed, 1) % 2)),
        "last": event // TOGETHER % LENGTH == LENGTH - 1,
    }


TEXTS = Generated("digits", "text_id long, digit string, last boolean", 100, digits)
