"""The SQL of an audit. Its core is a full outer join, on the keys, of the expected rows and the rows of a table."""

from __future__ import annotations

from checks.spec import AuditedTable

LOST, DUPLICATE, PHANTOM, DIFFERS = "lost", "duplicate", "phantom", "differs"

BATCH = "tmp_view"
"""The name that Great Expectations gives to the DataFrame it validates."""
EXPECTED = "weir_expected"
EPOCH_FILES = "weir_epoch_files"


def differences(table: AuditedTable, expected: str, got: str = "{batch}") -> str:
    """Returns a query for every key that is not in the table exactly once with exactly the expected values.

    Each row has a label. `lost`: expected, but not in the table. `phantom`: in the table, but not expected, as every
    NULL key. `duplicate`: more than once in the table. `differs`: once in the table, with other values. `copies` is the
    number of rows in the table with that key.
    """
    keys = ", ".join(table.keys)
    on = " AND ".join(f"want.{key} = have.{key}" for key in table.keys)
    shown = ", ".join(f"coalesce(want.{key}, have.{key}) AS {key}" for key in table.keys)
    values = ", ".join(f"'{name}', {name}" for name in table.values) or "'', 0"
    record = f"named_struct({values})"
    return f"""
        SELECT * FROM (
            SELECT CASE WHEN have.copies IS NULL THEN '{LOST}'
                        WHEN want.record IS NULL THEN '{PHANTOM}'
                        WHEN have.copies > 1 THEN '{DUPLICATE}'
                        WHEN want.record <=> have.record THEN NULL
                        ELSE '{DIFFERS}' END AS label,
                   '{table.name}' AS table, {shown}, coalesce(have.copies, 0) AS copies,
                   to_json(want.record) AS expected, to_json(have.record) AS got
            FROM (SELECT {keys}, {record} AS record FROM {expected}) AS want
            FULL OUTER JOIN
                 (SELECT {keys}, count(*) AS copies, min({record}) AS record FROM {got} GROUP BY {keys}) AS have
            ON {on}
        ) WHERE label IS NOT NULL ORDER BY label, {keys}
    """


def by_label(query: str) -> str:
    """Returns a query for the number of wrong rows of each label. One copy of a duplicate is right."""
    surplus = f"CASE label WHEN '{DUPLICATE}' THEN copies - 1 WHEN '{PHANTOM}' THEN copies ELSE 1 END"
    return f"SELECT label, sum({surplus}) AS rows FROM ({query.format(batch=BATCH)}) GROUP BY label ORDER BY label"


def partial_epochs(table: AuditedTable, got: str = "{batch}") -> str:
    """Returns a query for every epoch whose number of rows in the table differs from what its checkpoint counted.

    `got` is the table with the name of each row's file as `file` and its number there as `row_index`. The view
    `EPOCH_FILES` has the epoch of the rows of each file from number `first` to the one before `behind` (NULL: all), and
    for each epoch a line without file that has the counted rows. Rows that no epoch published have the epoch NULL.
    """
    return f"""
        SELECT * FROM (
            SELECT '{table.name}' AS table, coalesce(want.epoch, have.epoch) AS epoch,
                   coalesce(want.rows, 0) AS counted, coalesce(have.rows, 0) AS in_table
            FROM (SELECT epoch, rows FROM {EPOCH_FILES} WHERE file IS NULL) AS want
            FULL OUTER JOIN (
                SELECT files.epoch, count(*) AS rows
                FROM {got} AS data LEFT JOIN {EPOCH_FILES} AS files ON data.file = files.file
                     AND data.row_index >= files.first AND (files.behind IS NULL OR data.row_index < files.behind)
                GROUP BY files.epoch
            ) AS have ON want.epoch = have.epoch
        ) WHERE counted <> in_table ORDER BY epoch
    """


def false_facts(check: str) -> str:
    """Returns a query for the facts of a check whose two sides differ, with the table and the epoch of each."""
    return f"""
        SELECT nullif(table, '') AS table, epoch, what, expected, found FROM {{batch}}
        WHERE check = '{check}' AND expected <> found ORDER BY table NULLS LAST, epoch, what
    """
