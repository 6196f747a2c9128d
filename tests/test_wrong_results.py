"""Functions that return or keep the wrong thing: the job ends with what to return, and with the author's line."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from engine.api import (
    DataStream,
    KeyedProcessFunction,
    ProcessContext,
    RuntimeContext,
    StreamEnvironment,
    ValueStateDescriptor,
)
from engine.connectors.table import TableSink
from engine.jobmaster.events import AttemptFailed
from engine.testing import JobFailed, ListSource, LocalRun, run

HERE = "test_wrong_results.py, line "


class One(KeyedProcessFunction):
    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[dict[str, Any]]:
        return {"k": value["k"], "n": 1}  # type: ignore[return-value]


class Keeps(KeyedProcessFunction):
    """Puts `what` into a state of this type."""

    def __init__(self, kind: str, what: Any) -> None:
        self._kind, self._what = kind, what

    def open(self, context: RuntimeContext) -> None:
        self._state = context.get_state(ValueStateDescriptor("seen", self._kind))

    def process_element(self, value: dict[str, Any], context: ProcessContext) -> Iterable[dict[str, Any]]:
        self._state.update(self._what)
        return [value]


WRONG: list[tuple[str, Callable[[DataStream], DataStream], list[str]]] = [
    (
        "a field too many",
        lambda stream: stream.map(lambda row: {**row, "price": 5}),
        ["its function returned the field 'price', which its results do not have (k string, n int64): declare", HERE],
    ),
    (
        "a field too many of a later record",
        lambda stream: stream.flat_map(lambda row: [row, {**row, "price": 5}]),
        ["its function returned the field 'price', which its results do not have", HERE],
    ),
    (
        "None of map",
        lambda stream: stream.map(lambda row: None),  # type: ignore[arg-type, return-value]
        ["its function returned None as a record; return a dict: {'k': …, 'n': …}", HERE],
    ),
    (
        "None of map with a schema",
        lambda stream: stream.map(lambda row: None, schema="k string"),  # type: ignore[arg-type, return-value]
        ["its function returned None as a record; return a dict: {'k': …}", HERE],
    ),
    (
        "a dict of flat_map",
        lambda stream: stream.flat_map(lambda row: row),
        ["it returned {'k': 'a', 'n': 1}: return a list of records, [] for none, or yield them"],
    ),
    (
        "None of flat_map",
        lambda stream: stream.flat_map(lambda row: None),  # type: ignore[arg-type, return-value]
        ["it returned None: return a list of records"],
    ),
    (
        "a dict of process",
        lambda stream: stream.key_by("k").process(One(), uid="one"),
        ["operator 'one', subtask 0", "it returned {'k': 'a', 'n': 1}: return a list of records"],
    ),
    (
        "a text in a state of integers",
        lambda stream: stream.key_by("k").process(Keeps("long", "x"), uid="keeps"),
        ["operator 'keeps'", "state 'seen' is declared as int64, but update() was given 'x' for the key ('a',)"],
    ),
    (
        "a nested value that does not fit",
        lambda stream: stream.key_by("k").process(Keeps("array<long>", ["x"]), uid="keeps"),
        ["operator 'keeps' (" + HERE, "state 'seen' is declared as list<element: int64>, but holds:"],
    ),
]


@pytest.mark.promise("H8")
@pytest.mark.parametrize(
    ("build", "says"), [(build, says) for _, build, says in WRONG], ids=[name for name, *_ in WRONG]
)
def test_a_wrong_result_ends_the_job_with_what_to_do(
    build: Callable[[DataStream], DataStream], says: list[str]
) -> None:
    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("1 min")
        stream = env.from_source(ListSource([{"k": "a", "n": 1}]), "k string, n long", uid="numbers")
        build(stream).sink_to(TableSink("out"), uid="out")

    started = LocalRun(job, 1, {})
    with pytest.raises(JobFailed) as caught:
        started.run()
    for text in says:
        assert text in str(caught.value)
    assert started.ended is not None and started.ended.raised is not None
    if "it returned" in says[-1]:
        assert HERE.split(",")[0] in started.ended.raised.line


def test_a_field_that_a_declared_schema_does_not_have_is_not_dropped_silently() -> None:
    def job(env: StreamEnvironment) -> None:
        stream = env.from_source(ListSource([{"k": "a", "n": 1}]), "k string, n long", uid="numbers")
        stream.map(lambda row: {**row, "nn": 2}, schema="k string, n long").sink_to(TableSink("out"), uid="out")

    with pytest.raises(JobFailed, match=r"the field 'nn', which its results do not have .*did you mean 'n'\?: declare"):
        run(job)


@pytest.mark.promise("F3", "H8")
@pytest.mark.parametrize(("line", "cause"), [("raises", "user_code"), ("impossible", "unfit")])
def test_only_an_error_with_a_line_of_the_author_is_called_his_function_s(line: str, cause: str) -> None:
    def job(env: StreamEnvironment) -> None:
        env.enable_checkpointing("1 min")
        stream = env.from_source(ListSource([{"n": 1}]), "n long", uid="numbers")
        wrong: Any = (lambda row: 1 // 0) if line == "raises" else (lambda row: {"m": 1})
        stream.map(wrong).sink_to(TableSink("out"), uid="out")

    started = LocalRun(job, 1, {})
    with pytest.raises(JobFailed):
        started.run()
    assert {event.cause for event in started.events if isinstance(event, AttemptFailed)} == {cause}
