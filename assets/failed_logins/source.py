"""Logins of users, of which a third fail."""

import numpy as np

from assets.generated import Generated, chance
from engine.connectors.generator import Columns

USERS = 50


def logins(event: np.ndarray, seed: int) -> Columns:
    return {"user_id": chance(event, seed, 1) % USERS, "ok": chance(event, seed, 2) % 3 > 0}


LOGINS = Generated("logins", "user_id long, ok boolean", 100, logins)
