"""Numbers."""

import numpy as np

from assets.generated import Generated, chance
from engine.connectors.generator import Columns


def numbers(event: np.ndarray, seed: int) -> Columns:
    return {"value": chance(event, seed, 1) % 1000}


NUMBERS = Generated("numbers", "value long", 100, numbers)
