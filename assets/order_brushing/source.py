"""What users do in a shop: they log in, look at something, order and pay."""

import numpy as np
import pyarrow as pa

from assets.generated import Generated, chance
from engine.connectors.generator import Columns

USERS = 40
STEPS = pa.array(["login", "order", "pay", "look"])


def clicks(event: np.ndarray, seed: int) -> Columns:
    return {
        "user_id": chance(event, seed, 1) % USERS,
        "what": STEPS.take(pa.array(chance(event, seed, 2) % len(STEPS))),
    }


CLICKS = Generated("clicks", "user_id long, what string", 100, clicks)
