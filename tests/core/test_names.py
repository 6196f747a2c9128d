"""Names that become parts of paths stay inside the store."""

from __future__ import annotations

import pytest

from engine.connectors.table import TableSink
from engine.core.errors import JobError
from engine.core.names import check_name


@pytest.mark.parametrize("name", ["pageviews", "a", "9", "a-b_c.d=e", "x" * 100])
def test_letters_digits_and_a_few_signs_make_a_name(name: str) -> None:
    assert check_name("job", name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../a", "a/b", "/a", ".a", "_a", "-a", "a b", "ä", "a\n", "a\0", "x" * 101]
)
def test_whatever_could_leave_a_folder_or_hide_in_it_is_refused(name: str) -> None:
    with pytest.raises(JobError, match="can't be the name of a job: write up to 100 letters"):
        check_name("job", name)


def test_each_part_of_a_table_s_path_is_a_name_and_absolute_paths_are_the_user_s_own() -> None:
    assert TableSink("daily/pv").path == "daily/pv" and TableSink("/lake of mine/pv").path == "/lake of mine/pv"
    with pytest.raises(JobError, match="'_pv' can't be the name of a table"):
        TableSink("daily/_pv")
