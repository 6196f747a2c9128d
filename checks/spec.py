"""`DrillSpec`: how a job is drilled and audited. `assets/<job>/drill.py`, beside the job, has one named `DRILL`.

This module imports neither Spark nor Great Expectations, so Dagster can load every spec at start-up.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from engine.api.schema import parse_schema
from engine.core.errors import WeirError
from engine.host.launch import default_name
from engine.process.loading import look_in_current_folder

LEDGER = "weir_ledger"
"""The temporary view that a recomputation reads: the expected records, one row each."""

DRILLS_KEPT = 20
"""The folders of this many drills of a job are kept."""

AUDIT_CHECKS: Mapping[str, str] = {
    "no_lost_duplicate_phantom_rows": "each record of the ledger is in the raw table exactly once, and nothing else is",
    "aggregates_equal_recomputation": "the aggregates are those of a Spark batch recomputation over the ledger",
    "keys_not_null": "no key is NULL",
    "epochs_whole": "each epoch's files are there and hold exactly the rows that its checkpoint counted and digested",
    "schema_as_declared": "each file has the table's columns and types, and no other",
    "ledger_equations": "in each epoch, what was sent was received, and what was read was sent and written",
    "evidence_intact": "ledger, reads, result and history are as the drill sealed them, and the ledger as the source",
    "fault_happened": "each process that the drill struck is the cause of its restart",
    "no_stray_files": "no data file is there that no epoch published",
}
"""The checks of an audit, in the order of the report, and what each says when it passes."""

WARNINGS = frozenset({"no_stray_files"})
"""The checks that only warn: plain Spark does not read what they find."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class NoDrill(WeirError):
    """The job has no `DrillSpec`."""


@dataclass(frozen=True)
class AuditedTable:
    """A Weir table of the job. `uid` is its sink's; `keys` are the columns that identify a row and are never NULL."""

    name: str
    uid: str
    schema: str
    keys: tuple[str, ...]

    def __post_init__(self) -> None:
        for column in self.arrow_schema.names:
            if not _NAME.fullmatch(column):
                raise ValueError(f"table {self.name!r}: the column {column!r} can't be used in an audit; rename it")
        unknown = [key for key in self.keys if key not in self.arrow_schema.names]
        if unknown or not self.keys:
            raise ValueError(f"table {self.name!r} needs keys that are columns of it; unknown: {unknown}")

    @property
    def arrow_schema(self) -> pa.Schema:
        return parse_schema(self.schema)

    @property
    def values(self) -> tuple[str, ...]:
        return tuple(name for name in self.arrow_schema.names if name not in self.keys)


@dataclass(frozen=True)
class DrillSpec:
    """A bounded run of a job, all of whose records are known beforehand.

    `make` is the source's own pure function from record numbers to columns. With `params` the job writes each record
    unchanged to the table `rows`, and its results to `aggregates`. `records_param` names the parameter that bounds the
    job; `records_per_s` is the rate that the other parameters give. `recomputation` is Spark SQL over `{ledger}` that
    gives the columns of `aggregates`, with rows in any order.
    """

    job: str
    path: str
    params: Mapping[str, str]
    records_param: str
    records_per_s: int
    source_uid: str
    make: Callable[[np.ndarray], Mapping[str, Any]]
    rows: AuditedTable
    aggregates: AuditedTable
    recomputation: str
    parallelism: int = 2

    @property
    def tables(self) -> tuple[AuditedTable, AuditedTable]:
        return (self.rows, self.aggregates)

    def launch_params(self, records: int) -> dict[str, str]:
        return {**self.params, self.records_param: str(records)}

    def recomputation_sql(self) -> str:
        return self.recomputation.format(ledger=LEDGER)


def load_spec(job: str) -> DrillSpec:
    """Returns the `DRILL` of a job, given its name (`pageviews`) or its import path (`assets.pageviews.job:job`)."""
    package = job.partition(":")[0].rpartition(".")[0] if ":" in job else f"assets.{job}"
    module_name = f"{package}.drill" if package else "drill"
    look_in_current_folder()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name + ".").startswith(error.name + "."):
            raise NoDrill(f"{module_name} can't be imported: it needs the module {error.name!r}") from error
        name = default_name(job) if ":" in job else job
        raise NoDrill(
            f"job {name!r} does not say how it can be drilled: there is no module {module_name}. Write one with "
            "DRILL = DrillSpec(...), as in assets/pageviews/drill.py"
        ) from error
    spec = getattr(module, "DRILL", None)
    if not isinstance(spec, DrillSpec):
        raise NoDrill(f"{module_name} has no DRILL = DrillSpec(...)")
    return spec
