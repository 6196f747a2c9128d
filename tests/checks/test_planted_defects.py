"""Goal: the audit finds defects. For each one planted in a sink table the right checks fail, with the right labels.

Topology: the store of a small drill without faults (tests/checks/small.py). Faults: one defect each. Checks: the
verdict of every check, the labels of the rows it shows, and the figures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checks.audit import run_audit
from checks.plan import AGGREGATES, EPOCHS, EQUATIONS, EVIDENCE, KEYS, ROWS, SCHEMA, STRAY
from checks.results import AuditResult, Verdict
from checks.spec import AUDIT_CHECKS
from tests.checks import small
from tests.checks.small import PER_EPOCH, RECORDS, SPEC, Table, both, changed, doubled, with_rows, without

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PHANTOM = (RECORDS + 5, "app1", 1, 40, 1_700_000_000_000_000)


@dataclass(frozen=True)
class Defect:
    """A defect. `red` has, for each check that must fail, the number of rows it shows by label, or else the epochs."""

    plant: Callable[[Table, Table], None]
    red: dict[str, dict[str, int]]
    figures: dict[str, int] = field(default_factory=dict)


DEFECTS = {
    "a row dropped": Defect(
        lambda views, pv: views.rewrite(4, without(7)), {ROWS: {"lost": 1}, EPOCHS: {"4": 1}}, {"lost": 1}
    ),
    "a row doubled": Defect(
        lambda views, pv: views.rewrite(4, doubled(7)), {ROWS: {"duplicate": 1}, EPOCHS: {"4": 1}}, {"duplicated": 1}
    ),
    "one dropped and one doubled": Defect(
        lambda views, pv: views.rewrite(4, both(without(7), doubled(9))),
        {ROWS: {"lost": 1, "duplicate": 1}, EPOCHS: {"4": 1}},
        {"lost": 1, "duplicated": 1},
    ),
    "an epoch published twice": Defect(
        lambda views, pv: views.publish_again(3),
        {ROWS: {"duplicate": PER_EPOCH}, EPOCHS: {"13": 1}},
        {"duplicated": PER_EPOCH, "rows": RECORDS + PER_EPOCH},
    ),
    "a NULL key": Defect(
        lambda views, pv: views.rewrite(4, changed(7, "view_id", None)),
        {ROWS: {"lost": 1, "phantom": 1}, KEYS: {}, EPOCHS: {"4": 1}},
        {"lost": 1, "phantom": 1},
    ),
    "a phantom": Defect(
        lambda views, pv: views.rewrite(4, with_rows(PHANTOM)),
        {ROWS: {"phantom": 1}, EPOCHS: {"4": 1}},
        {"phantom": 1},
    ),
    "an aggregate off by one": Defect(
        lambda views, pv: pv.rewrite(8, changed(3, "pv", lambda count: count + 1)),
        {AGGREGATES: {"differs": 1}, EPOCHS: {"8": 1}},
        {"aggregates_differing": 1},
    ),
    "an empty table": Defect(
        lambda views, pv: views.forget_files(),
        {ROWS: {"lost": RECORDS}, EPOCHS: {str(epoch): 1 for epoch in range(1, 13)}, STRAY: {}},
        {"lost": RECORDS, "rows": 0},
    ),
    "a file that is gone": Defect(
        lambda views, pv: views.file(4).unlink(),
        {ROWS: {"lost": PER_EPOCH // 2}, EPOCHS: {"4": 1}},
        {"lost": PER_EPOCH // 2, "rows": RECORDS - PER_EPOCH // 2},
    ),
    "a file with another column": Defect(
        lambda views, pv: views.rewrite(4, lambda rows: rows.append_column("x", rows.column(0))),
        {SCHEMA: {"4": 1}, EPOCHS: {"4": 1}},
    ),
    # More defects: a changed value, and lost and doubled rows of the aggregates.
    "a value changed": Defect(
        lambda views, pv: views.rewrite(4, changed(7, "bytes", 1)),
        {ROWS: {"differs": 1}, EPOCHS: {"4": 1}},
        {"differing": 1},
    ),
    "a window dropped and one doubled": Defect(
        lambda views, pv: pv.rewrite(8, both(without(2), doubled(5))),
        {AGGREGATES: {"lost": 1, "duplicate": 1}, EPOCHS: {"8": 1}},
        {"aggregates_lost": 1, "aggregates_duplicated": 1},
    ),
    "windows that are not there at all": Defect(
        lambda views, pv: pv.forget_files(),
        {AGGREGATES: {"lost": 66}, EPOCHS: {"8": 1, "11": 1, "12": 1}, STRAY: {}},
        {"aggregates_lost": 66, "aggregates": 0},
    ),
}


def summary(result: AuditResult, check: str) -> str:
    return next(one.summary for one in result.checks if one.name == check)


def labels(result: AuditResult, check: str) -> dict[str, int]:
    found = next(one for one in result.checks if one.name == check)
    return dict(Counter(str(row.get("label", row.get("epoch"))) for row in found.rows))


@pytest.mark.promise("H3")
@pytest.mark.parametrize("name", DEFECTS)
def test_exactly_the_right_checks_go_red(name: str, drill: Path, spark: SparkSession) -> None:
    defect = DEFECTS[name]
    defect.plant(Table(drill, SPEC.rows), Table(drill, SPEC.aggregates))
    result = run_audit(SPEC, drill, spark=spark)
    wanted = {check: Verdict.FAILED if check in defect.red else Verdict.PASSED for check in AUDIT_CHECKS}
    assert {check.name: check.verdict for check in result.checks} == wanted, result.checks
    assert result.verdict is Verdict.FAILED
    assert (result.evaluated, result.expected) == (12, 12)
    for check, found in defect.red.items():
        assert any(table.name in summary(result, check) for table in SPEC.tables), "a red check says its table"
        shown = labels(result, check)
        if check == EPOCHS:  # what plain Spark counts, and what the files hold
            assert set(shown) == set(found)
        elif check == STRAY:
            assert shown
        elif sum(found.values()) <= 20:  # the audit shows all rows
            assert shown == found
        else:
            assert set(shown) == set(found)
    unchanged = {"lost": 0, "duplicated": 0, "phantom": 0, "differing": 0}
    unchanged |= {f"aggregates_{figure}": 0 for figure in unchanged}
    wrong = {figure: count for figure, count in result.figures.items() if figure in unchanged and count}
    assert wrong == {figure: count for figure, count in defect.figures.items() if figure in unchanged}
    for figure in ("rows", "aggregates"):
        assert result.figures[figure] == defect.figures.get(figure, result.figures[figure])


@pytest.mark.promise("H1", "H3")
def test_the_ledger_of_an_epoch_that_does_not_add_up_is_red(drill: Path, spark: SparkSession) -> None:
    events = drill / small.PATHS.history("events.jsonl")
    lines = events.read_text().splitlines()
    changed = lines[4].replace('"received:views->raw":1250', '"received:views->raw":1249')
    assert changed != lines[4]
    lines[4] = changed
    events.write_text("\n".join(lines) + "\n")
    result = run_audit(SPEC, drill, spark=spark)
    red = [check for check in result.checks if check.verdict is not Verdict.PASSED]
    assert [check.name for check in red] == [EQUATIONS, EVIDENCE] and result.verdict is Verdict.FAILED
    # Epoch 5 received one row less than it was sent, epoch 6 one more.
    assert [(row["epoch"], row["left"], row["right"]) for row in red[0].rows] == [(5, 250, 249), (6, 250, 251)]
    assert all("views->raw" in row["what"] for row in red[0].rows)
