"""The SQL of an audit. The core is a full outer join of what was expected and what is there, on the keys."""

from __future__ import annotations

from checks.spec import AuditedTable

LOST, DUPLICATE, PHANTOM, DIFFERS = "lost", "duplicate", "phantom", "differs"

BATCH = "tmp_view"
"""The name that Great Expectations gives to the DataFrame it validates."""
EXPECTED = "weir_expected"
EPOCH_FILES = "weir_epoch_files"


def differences(table: AuditedTable, expected: str, got: str = "{batch}") -> str:
    """A row, labelled, for every key that is not there exactly once with exactly the values expected.

    `lost`: expected, not there. `phantom`: there, not expected; a NULL key never is. `duplicate`: there more than once.
    `differs`: there once, with other values. `copies` says how often it is there.
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
                   {shown}, coalesce(have.copies, 0) AS copies,
                   to_json(want.record) AS expected, to_json(have.record) AS got
            FROM (SELECT {keys}, {record} AS record FROM {expected}) AS want
            FULL OUTER JOIN
                 (SELECT {keys}, count(*) AS copies, min({record}) AS record FROM {got} GROUP BY {keys}) AS have
            ON {on}
        ) WHERE label IS NOT NULL ORDER BY label, {keys}
    """


def by_label(query: str) -> str:
    """How many keys and rows of each label: a duplicate has one row that is right, a lost one has none."""
    surplus = f"CASE label WHEN '{DUPLICATE}' THEN copies - 1 WHEN '{PHANTOM}' THEN copies ELSE 1 END"
    return f"SELECT label, sum({surplus}) AS rows FROM ({query.format(batch=BATCH)}) GROUP BY label ORDER BY label"


def partial_epochs(got: str = "{batch}") -> str:
    """A row for every epoch of which the table holds another number of rows than its checkpoint counted.

    `got` is the table with the name of each row's file as `file`; the view has the epoch of each file, and a line
    without file for what each epoch should have. Rows in files that no epoch published are of epoch NULL.
    """
    return f"""
        SELECT * FROM (
            SELECT coalesce(want.epoch, have.epoch) AS epoch,
                   coalesce(want.rows, 0) AS counted, coalesce(have.rows, 0) AS in_table
            FROM (SELECT epoch, rows FROM {EPOCH_FILES} WHERE file IS NULL) AS want
            FULL OUTER JOIN (
                SELECT files.epoch, count(*) AS rows
                FROM {got} AS data LEFT JOIN {EPOCH_FILES} AS files ON data.file = files.file
                GROUP BY files.epoch
            ) AS have ON want.epoch = have.epoch
        ) WHERE counted <> in_table ORDER BY epoch
    """
