"""A script's functions travel pickled: what can't be pickled is named before anything starts."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from engine.api import DataStream, JobError, MapFunction, StreamEnvironment
from engine.process.sending import check_sendable


class Holds(MapFunction):
    def __init__(self, client: Any) -> None:
        self.client = client

    def map(self, value: dict[str, Any]) -> dict[str, Any]:
        return value


def closure() -> Callable[[dict[str, Any]], dict[str, Any]]:
    lock = threading.Lock()

    def guarded(row: dict[str, Any]) -> dict[str, Any]:
        with lock:
            return row

    return guarded


def graph(build: Callable[[DataStream], DataStream]) -> Any:
    env = StreamEnvironment()
    build(env.from_elements([], "n long", uid="numbers")).print(uid="out")
    return env.build("job")


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (
            lambda stream: stream.map(closure(), uid="clean"),
            [
                "map 'clean' can't be sent to the slots: its function guarded (test_sending.py, line ",
                "uses 'lock', a lock, which can't be pickled",
                "create it in open()",
            ],
        ),
        (
            lambda stream: stream.map(Holds(threading.Lock()), uid="clean"),
            ["map 'clean' can't be sent to the slots", "uses 'client', a lock", "create it in open()"],
        ),
    ],
)
def test_what_can_t_be_pickled_is_named_with_operator_function_and_variable(
    build: Callable[[DataStream], DataStream], says: list[str]
) -> None:
    with pytest.raises(JobError) as caught:
        check_sendable(graph(build))
    for text in says:
        assert text in str(caught.value)
    assert "Start the script again" not in str(caught.value)


def test_a_job_of_plain_functions_can_be_sent() -> None:
    check_sendable(graph(lambda stream: stream.map(lambda row: row).filter(lambda row: True)))
