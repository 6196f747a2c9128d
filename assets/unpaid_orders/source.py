"""Orders, one every 72 seconds, and what happens to them: they are paid in time, at the limit, too late or never.

Between two orders there is one other event: it pays an earlier order, or somebody looks at an order.
"""

import numpy as np
import pyarrow as pa

from assets.generated import Generated, chance
from engine.connectors.generator import Columns

STEP_MS = 36_000
KINDS = pa.array(["order", "pay", "look"])
PAID_AFTER = np.array([8, 12, 16, 0])
"""In orders, by the kind of order: 10.2 minutes, exactly 15 minutes and 19.8 minutes later; the last kind never."""


def events(event: np.ndarray, seed: int) -> Columns:
    number = event // 2
    kind = (number + chance(np.zeros_like(event), seed)) % len(PAID_AFTER)
    after = PAID_AFTER[kind]  # a multiple of the number of kinds: so the order that is paid now is of the same kind
    ordered = event % 2 == 0
    paid = ~ordered & (after > 0) & (number >= after)
    return {
        "order_id": np.where(paid, number - after, number),
        "what": KINDS.take(pa.array(np.select([ordered, paid], [0, 1], 2))),
    }


EVENTS = Generated("events", "order_id long, what string", STEP_MS, events)
