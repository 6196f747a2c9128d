"""`join_static` as an author writes it: the columns of its result, and what each mistake is told."""

from __future__ import annotations

from typing import Any

import pytest

from engine.api import JobError, StreamEnvironment


def views(env: StreamEnvironment | None = None) -> Any:
    return (env or StreamEnvironment()).from_elements([], "app_id string, user long", uid="views")


def no_frame(spark: Any) -> Any:
    raise AssertionError("never called while a job is built")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"on": "app"}, "the stream has no column 'app'"),
        ({"on": "user"}, "the table has no column 'user'"),
        ({"on": []}, "on=... needs at least one column"),
        ({"on": "app_id", "how": "full"}, "'inner' or 'left'"),
        ({"on": "app_id", "schema": "app_id long, owner string"}, "string in the stream and int64 in the table"),
        ({"on": "app_id", "schema": "app_id string, user long"}, "both sides have a column 'user'"),
        ({"on": "app_id", "schema": None}, "needs schema="),
        ({"on": "app_id", "refresh": "10 ms"}, "refresh at most once a second"),
    ],
)
def test_what_can_t_be_joined_is_said_while_the_job_is_built(options: dict[str, Any], said: str) -> None:
    with pytest.raises(JobError, match=said):
        views().join_static(no_frame, uid="owners", **{"schema": "app_id string, owner string", **options})


def test_the_joined_stream_has_the_columns_of_both_sides() -> None:
    joined = views().join_static(no_frame, on="app_id", uid="owners", schema="app_id string, owner string")
    assert joined.schema.names == ["app_id", "user", "owner"]
