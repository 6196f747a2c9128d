"""Compares what two versions of a job have published after a rehearsal: Great Expectations on Spark, one suite a table.

Rows are compared whose event time both versions have passed since the epoch that they went on from, in the columns that
both have. A window's results are matched by key and window; other rows have no key, and are counted. Floats are
compared with seven digits: the order of additions is not the same in two runs.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from checks.audit import Answers, judge
from checks.docs import finish_docs
from checks.expectations import NoRows
from checks.plan import Planned
from checks.results import AuditResult, CheckResult, Verdict
from checks.session import session
from engine.process.rehearsing import ComparableTable, Rehearsed

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from checks._gx import Suites

ONLY_OLD, ONLY_NEW, CHANGED = "only in the old", "only in the new", "changed"
MEANINGS = {
    ONLY_OLD: "every row of the old version is in the new one's table",
    ONLY_NEW: "every row of the new version is in the old one's table",
    CHANGED: "rows of the same key have the same values in both",
}

_OLD = "weir_old"
_MAX_MS = 253_402_300_799_000
"""The last moment of the year 9999, the last one that Spark shows. A watermark may be later."""

Say = Callable[[str], None]


def compare(rehearsed: Rehearsed, say: Say, spark: SparkSession | None = None) -> AuditResult:
    """Compares the tables of the two versions. The result's checks are named by table and kind of difference.

    It does not raise for problems of the data, the store or the machine: they are part of the verdict.
    """
    answers = Answers()
    suites = {table.uid: _planned(table) for table in rehearsed.tables if not table.why_not}
    docs = ""
    try:
        say("starting Spark and Great Expectations")
        with session(spark, rehearsed.folder / "comparison.log", compiled=False) as running:
            docs = _Comparison(running, answers, say).run(rehearsed, suites)
    except Exception as error:
        for planned in suites.values():
            for one in planned:
                answers.could_not_run(one.check, error)
    checks = [judge(one.check, answers, one.expectation.meaning) for planned in suites.values() for one in planned]
    checks += [_not_compared(table) for table in rehearsed.tables if table.why_not]
    evaluated = sum(1 for _, one in answers.evaluated if not one.error)
    expected = sum(map(len, suites.values()))
    result = AuditResult(rehearsed.job, rehearsed.new_epoch, checks, evaluated, expected, answers.figures, docs)
    if docs:
        title = f"Rehearsal of {rehearsed.job} with {rehearsed.path}, from epoch {rehearsed.cut}"
        finish_docs(Path(docs).parent, result, title)
    (rehearsed.folder / "rehearsal.json").write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    return result


def _not_compared(table: ComparableTable) -> CheckResult:
    return CheckResult(f"{table.uid}: compared", Verdict.COULD_NOT_RUN, table.why_not)


def _planned(table: ComparableTable) -> list[Planned]:
    assert table.identity is not None
    labels = MEANINGS if table.identity.keys else [ONLY_OLD, ONLY_NEW]
    return [
        Planned(
            f"{table.uid}: {label}",
            NoRows(_labelled(table, label), f"{table.uid}: {MEANINGS[label]}", "ExpectTheSameRowsInBothVersions"),
        )
        for label in labels
    ]


def _labelled(table: ComparableTable, label: str) -> str:
    return f"SELECT * FROM ({differences(table)}) WHERE label = '{label}'"


def differences(table: ComparableTable, old: str = _OLD, new: str = "{batch}") -> str:
    """Returns a query for all rows that are not the same in both tables, with a label each.

    The rows of a key are compared as a whole; `old` and `new` are its values in the two tables, as JSON.
    """
    assert table.identity is not None
    keys = table.identity.keys or table.columns
    values = [name for name in table.columns if name not in keys]
    named = ", ".join(_quoted(key) for key in keys)
    fields = ", ".join(f"'{name}', {_quoted(name)}" for name in values)
    record = f"to_json(named_struct({fields}))" if values else "''"
    grouped = f"{named}, count(*) AS copies, sort_array(collect_list({record})) AS records"
    sides = [f"(SELECT {grouped} FROM {view} GROUP BY {named})" for view in (old, new)]
    on = " AND ".join(f"old.{_quoted(key)} <=> new.{_quoted(key)}" for key in keys)
    shown = ", ".join(f"coalesce(old.{_quoted(key)}, new.{_quoted(key)}) AS {_quoted(key)}" for key in keys)
    return f"""
        SELECT CASE WHEN new.copies IS NULL THEN '{ONLY_OLD}'
                    WHEN old.copies IS NULL THEN '{ONLY_NEW}'
                    WHEN size(old.records) > size(new.records) THEN '{ONLY_OLD}'
                    WHEN size(old.records) < size(new.records) THEN '{ONLY_NEW}'
                    ELSE '{CHANGED}' END AS label,
               {shown}, concat_ws(' ', old.records) AS old, concat_ws(' ', new.records) AS new
        FROM {sides[0]} AS old FULL OUTER JOIN {sides[1]} AS new ON {on}
        WHERE NOT (old.records <=> new.records)
        ORDER BY label, {", ".join(str(place + 2) for place in range(len(keys)))}
    """


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


class _Comparison:
    def __init__(self, spark: SparkSession, answers: Answers, say: Say) -> None:
        self._spark = spark
        self._answers = answers
        self._say = say

    def run(self, rehearsed: Rehearsed, suites: dict[str, list[Planned]]) -> str:
        """Returns the path of the pages; empty if they could not be written, which does not change the verdict."""
        from checks._gx import Suites

        docs = rehearsed.folder / "data_docs"
        shutil.rmtree(docs, ignore_errors=True)
        validator = Suites(docs, rehearsed.folder.name)
        for table in rehearsed.tables:
            if table.uid in suites:
                self._say(f"comparing {table.uid}")
                self._validate(validator, table, suites[table.uid])
        try:
            return str(validator.write_docs()) if suites else ""
        except Exception as error:
            self._say(f"the pages could not be written: {error}")
            return ""

    def _validate(self, validator: Suites, table: ComparableTable, planned: Sequence[Planned]) -> None:
        frames: list[DataFrame] = []
        try:
            old, new = (self._rows(table, folder).persist() for folder in (table.old, table.new))
            frames += [old, new]
            old.createOrReplaceTempView(_OLD)
            counted = {"old": old.count(), "new": new.count()}
            self._answers.figures |= {f"{table.uid}: rows of the {side}": rows for side, rows in counted.items()}
            if not any(counted.values()):
                raise ValueError("neither version has a row in the time that both have passed: rehearse longer")
            results = validator.validate(table.uid, new, [one.expectation for one in planned])
        except Exception as error:
            for one in planned:
                self._answers.could_not_run(one.check, error)
            return
        finally:
            with contextlib.suppress(Exception):
                self._spark.catalog.dropTempView(_OLD)
                for frame in frames:
                    frame.unpersist()
        for one in planned:
            answered = [result for result in results if result.expectation is one.expectation]
            if len(answered) != 1:
                self._answers.could_not_run(one.check, f"not evaluated: {one.expectation.meaning}")
            self._answers.evaluated += [(one.check, result) for result in answered]
            for result in answered:
                self._answers.figures[one.check] = result.unexpected

    def _rows(self, table: ComparableTable, folder: str) -> DataFrame:
        """Reads the rows in the time that is compared. A window belongs to the last millisecond before its end."""
        assert table.identity is not None
        frame = self._spark.read.option("mergeSchema", "true").parquet(folder)
        kinds = dict(frame.dtypes)
        time = _quoted(table.identity.time)
        moment = time if kinds[table.identity.time] == "bigint" else f"unix_millis(cast({time} AS timestamp))"
        last = 1 if table.identity.windows else 0
        until_ms = min(table.until_ms, _MAX_MS)
        chosen = frame.where(f"{moment} - {last} > {table.after_ms} AND {moment} - {last} <= {until_ms}")
        floats = {name for name, kind in kinds.items() if kind == "double"}
        return chosen.selectExpr(
            *(f"cast({_quoted(c)} AS float) AS {_quoted(c)}" if c in floats else _quoted(c) for c in table.columns)
        )
