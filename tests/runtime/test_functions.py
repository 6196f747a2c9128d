"""What a subtask gives to a function of the job."""

from __future__ import annotations

import threading

import pytest

from engine.core.errors import WeirError
from engine.core.functions import MapFunction
from engine.runtime.functions import own


class Locking(MapFunction):
    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_a_function_that_can_t_be_copied_says_where_to_make_what_it_needs() -> None:
    with pytest.raises(WeirError, match=r"Locking can't be copied.*in open\(\)"):
        own(Locking())


def test_a_plain_callable_is_shared_and_a_rich_function_is_copied() -> None:
    rich = MapFunction()
    assert own(len) is len and own(rich) is not rich
