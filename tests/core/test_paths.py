"""Names of files in the store: each uid has its own, and plain ones are written as they are."""

from hypothesis import example, given
from hypothesis import strategies as st

from engine.core.paths import JobPaths
from engine.protocol.ids import AttemptId

PATHS = JobPaths("job")


@given(st.text(min_size=1), st.text(min_size=1))
@example("a!92", "a\u2192")
@example("a%", "a%25")
def test_two_uids_never_have_the_same_file(one: str, other: str) -> None:
    assert (PATHS.source_listing(one) == PATHS.source_listing(other)) == (one == other)


def test_plain_uids_are_written_as_they_are_and_others_are_escaped_byte_by_byte() -> None:
    assert PATHS.source_listing("page-views_2") == "job/sources/page-views_2.json"
    assert PATHS.source_listing("a/b .\u00e9") == "job/sources/a%2fb%20%2e\u00e9.json"
    assert PATHS.source_listing("a\u2192") == "job/sources/a%e2%86%92.json"


def test_a_first_look_has_the_name_of_its_attempt_and_of_its_uid_only() -> None:
    look = PATHS.first_look("a.b", AttemptId(2, 13))
    assert look == "job/sources/a%2eb.look-2.13.json"
    assert [PATHS.parse_first_look(uid, look) for uid in ("a.b", "a")] == [AttemptId(2, 13), None]
