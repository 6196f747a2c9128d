"""The author's part of a traceback."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine.core.authors import author_took_part, calling_line, line_of, raised, short_line
from engine.core.closing import close_all
from engine.graph.stream_graph import StreamNode


def caught(function: Any) -> BaseException:
    with pytest.raises(Exception) as found:
        close_all([function])  # stands for the engine, which calls the author's function
    error = found.value
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next  # without this test's own call, which no slot has
    return error


def test_the_line_is_the_author_s_innermost_also_inside_of_a_library() -> None:
    def parse() -> None:
        json.loads("{")

    error = caught(parse)
    assert line_of(error) == f"{__file__}:{parse.__code__.co_firstlineno + 1}" and author_took_part(error)
    found = raised(error, "record 3", "{}")
    assert found.type == "JSONDecodeError" and (found.position, found.record) == ("record 3", "{}")
    first, *others = found.traceback.splitlines()
    assert first.startswith(f'  File "{__file__}"') and others[-1].startswith("json.decoder.JSONDecodeError: ")
    assert "closing.py" not in found.traceback


def test_an_error_without_the_author_s_code_has_no_line() -> None:
    error = caught(None)
    assert line_of(error) == "" and raised(error).traceback == "" and not author_took_part(error)


def test_a_cause_is_shown_too_and_a_long_text_is_cut() -> None:
    def first() -> None:
        raise KeyError("first")

    def wraps() -> None:
        try:
            first()
        except KeyError as error:
            raise ValueError("x" * 100_000) from error

    found = raised(caught(wraps))
    assert "KeyError: 'first'" in found.traceback
    assert len(found.message) < 9000 and len(found.traceback) < 9000


def test_a_node_of_a_graph_knows_the_line_that_made_it() -> None:
    node, here = StreamNode(0, "a", None, 1), calling_line()  # type: ignore[arg-type]
    assert node.line == here and short_line(here).startswith("test_authors.py, line ")
