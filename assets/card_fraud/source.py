"""Payments with cards. Many are small or large, and some are exactly at a limit."""

import numpy as np

from assets.generated import Generated, chance
from engine.connectors.generator import Columns

CARDS = 60
SMALL_CENTS, LARGE_CENTS = 100, 50_000
"""Below the first a payment is small, above the second it is large."""


def payments(event: np.ndarray, seed: int) -> Columns:
    some = chance(event, seed, 2)
    usual = SMALL_CENTS + some % (LARGE_CENTS - SMALL_CENTS)
    limits = [np.full_like(some, SMALL_CENTS), np.full_like(some, LARGE_CENTS)]
    kinds = [some % SMALL_CENTS, LARGE_CENTS + 1 + some % 90_000, *limits]
    return {
        "card": chance(event, seed, 1) % CARDS,
        "cents": np.select([(some >> 20) % 10 == kind for kind in range(4)], kinds, usual),
    }


PAYMENTS = Generated("payments", "card long, cents long", 100, payments)
