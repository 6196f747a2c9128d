"""The rows of the row lane in plain Python, and the tally of a peer's subtask. Every peer imports this module.

It uses only the standard library: each peer has another virtualenv.
"""

import json
import os
import time

KEYS = 10_000


def key_of(n):
    return (((n * 2_654_435_761) & 0x7FFF_FFFF) >> 11) * KEYS >> 20


def value_of(n):
    return ((n * 2_654_435_761) & 0x7FFF_FFFF) & 1023


class Tally:
    """Counts the rows of one subtask after the first `warmup` rows, and their time."""

    def __init__(self, folder, warmup):
        self._folder = folder
        self._warmup = warmup
        self._rows = 0
        self._first = None

    def add(self, rows):
        self._rows += rows
        if self._first is None and self._rows > self._warmup:
            self._first = time.time()
            self._warmup = self._rows

    def write(self):
        done = {"rows": self._rows - self._warmup, "first": self._first, "last": time.time()}
        with open(os.path.join(self._folder, f"tally-{os.getpid()}-{id(self)}.json"), "w") as file:
            json.dump(done, file)
