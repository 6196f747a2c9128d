"""Visits of sites. Some users come often, most of them seldom."""

import numpy as np
import pyarrow as pa

from assets.generated import Generated, chance
from engine.connectors.generator import Columns

SITES = pa.array(["news", "shop", "forum", "maps", "mail"])
USERS = 400


def visits(event: np.ndarray, seed: int) -> Columns:
    one, other = chance(event, seed, 1), chance(event, seed, 2)
    return {
        "site": SITES.take(pa.array(np.minimum(one % len(SITES), other % len(SITES)))),
        "user_id": np.minimum(one >> 8, other >> 8) % USERS,
    }


VISITS = Generated("visits", "site string, user_id long", 5_000, visits)
