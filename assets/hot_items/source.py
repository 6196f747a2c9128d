"""Views of items in a shop. Which items are popular changes from hour to hour."""

import numpy as np

from assets.generated import Generated, chance
from engine.connectors.generator import Columns

ITEMS = 60
STEP_MS = 500
PER_HOUR = 3_600_000 // STEP_MS


def item_views(event: np.ndarray, seed: int) -> Columns:
    one, other = chance(event, seed, 1), chance(event, seed, 2)
    popular = chance(event // PER_HOUR, seed, 3)
    return {"item": (np.minimum(one % ITEMS, other % ITEMS) + popular) % ITEMS}


VIEWS = Generated("views", "item long", STEP_MS, item_views)
