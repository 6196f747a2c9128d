"""Plans the expectations of an audit, each with the check that it belongs to, before any data is read."""

from __future__ import annotations

from dataclasses import dataclass

from checks import queries
from checks.expectations import Expectation, NoRows, NotNull
from checks.facts import AGGREGATES, EPOCHS, EQUATIONS, EVIDENCE, FAULT, KEYS, ROWS, SCHEMA, STRAY
from checks.spec import AUDIT_CHECKS, LEDGER, AuditedTable, DrillSpec

__all__ = ["AGGREGATES", "EPOCHS", "EQUATIONS", "EVIDENCE", "FAULT", "KEYS", "ROWS", "SCHEMA", "STRAY", "Planned"]

HISTORY = "epochs"
"""The suite about the job's own history; the others are named by their tables."""
FILES = "files"
"""The suite about the files of the tables and of the drill."""
OF_FILES = {
    EPOCHS: "ExpectFilesToHoldTheirEpochs",
    SCHEMA: "ExpectSchemaAsDeclared",
    EVIDENCE: "ExpectEvidenceToBeIntact",
    STRAY: "ExpectNoStrayFiles",
}
"""The checks that facts about files decide, and the class of each one's expectation."""


@dataclass(frozen=True)
class Planned:
    check: str
    expectation: Expectation


def plan(spec: DrillSpec) -> dict[str, list[Planned]]:
    """Returns the expectations of each suite. In a table's suite the comparison with the expected rows comes first."""
    equations = "SELECT epoch, what, left, right FROM {batch} WHERE left <> right ORDER BY epoch, what"
    return {
        spec.rows.name: _of_table(spec.rows, ROWS, LEDGER),
        spec.aggregates.name: _of_table(spec.aggregates, AGGREGATES, queries.EXPECTED),
        HISTORY: [Planned(EQUATIONS, NoRows(equations, AUDIT_CHECKS[EQUATIONS], "ExpectLedgerEquationsToHold"))],
        FILES: [
            Planned(check, NoRows(queries.false_facts(check), AUDIT_CHECKS[check], name))
            for check, name in OF_FILES.items()
        ],
    }


def _of_table(table: AuditedTable, check: str, expected: str) -> list[Planned]:
    name = "ExpectRowsToEqualTheLedger" if check == ROWS else "ExpectAggregatesToEqualTheRecomputation"
    whole = f"{table.name}: {AUDIT_CHECKS[EPOCHS]}"
    return [
        Planned(check, NoRows(queries.differences(table, expected), AUDIT_CHECKS[check], name)),
        *(Planned(KEYS, NotNull(table.name, key)) for key in table.keys),
        Planned(EPOCHS, NoRows(queries.partial_epochs(table), whole, "ExpectEpochsToBeWhole")),
    ]
