"""Readings of sensors, five per second and sensor. A temperature rises in steps and falls back at the end of a cycle.

Cycles are of different lengths, so some sensors rise for more than a second and others never do; some readings are
wrong by more than a step.
"""

import numpy as np

from assets.generated import Generated, chance
from engine.connectors.generator import Columns

SENSORS = 20
STEP_MS = 10
SHORTEST, LENGTHS = 3, 14


def readings(event: np.ndarray, seed: int) -> Columns:
    sensor = event % SENSORS
    cycle = SHORTEST + (sensor + chance(np.zeros_like(event), seed)) % LENGTHS
    wrong = np.where(chance(event, seed, 1) % 25 == 0, -0.75, 0.0)
    return {"sensor": sensor, "celsius": 20.0 + 0.25 * (event // SENSORS % cycle) + wrong}


READINGS = Generated("readings", "sensor long, celsius double", STEP_MS, readings)
