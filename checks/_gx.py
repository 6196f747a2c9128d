"""The one module that imports Great Expectations.

Great Expectations imports `pyspark.sql.connect`, which takes a process whose `__main__` has neither `__spec__` nor
`__file__` for a doctest and ends it with exit code 0. A Dagster run worker is such a process, so this module gives
`__main__` a `__file__` first. It also switches telemetry off before the import, which reads that setting.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from checks.expectations import Evaluated, Expectation, NoRows, NotNull

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_main = sys.modules["__main__"]
if getattr(_main, "__spec__", None) is None and not hasattr(_main, "__file__"):
    _main.__file__ = __file__
os.environ["GX_ANALYTICS_ENABLED"] = "false"

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import great_expectations as gx
    from great_expectations.checkpoint.actions import UpdateDataDocsAction
    from great_expectations.core.run_identifier import RunIdentifier
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )
    from great_expectations.expectations.core.expect_column_values_to_not_be_null import ExpectColumnValuesToNotBeNull
    from great_expectations.expectations.core.unexpected_rows_expectation import UnexpectedRowsExpectation

logging.getLogger("great_expectations").setLevel(logging.ERROR)

_SITE = "weir"

gxe = gx.expectations
"""The expectations, by their own names, for who writes a suite."""


class Suites:
    """Validates DataFrames one after the other (their view has a fixed name), and writes Data Docs about them.

    Each suite is run by a Checkpoint, whose action updates the Data Docs. `run` is the name of all their runs: the id
    of the drill, audit or rehearsal.
    """

    def __init__(self, docs: Path, run: str) -> None:
        site = {
            "class_name": "SiteBuilder",
            "store_backend": {"class_name": "TupleFilesystemStoreBackend", "base_directory": str(docs)},
            "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        }
        config = DataContextConfig(
            store_backend_defaults=InMemoryStoreBackendDefaults(),
            data_docs_sites={_SITE: site},
            analytics_enabled=False,
            progress_bars=ProgressBarsConfig(globally=False),
        )
        with _quietly():
            self._context = gx.get_context(mode="ephemeral", project_config=config)
            self._source = self._context.data_sources.add_spark("spark", persist=False)
        self._docs = docs
        self._run = RunIdentifier(run_name=run)
        self._no_docs: Exception | None = None

    def validate(self, name: str, frame: DataFrame, expectations: Sequence[Expectation]) -> list[Evaluated]:
        """Returns one result for each expectation that Great Expectations evaluated; the caller counts them."""
        with _quietly():
            asset = self._source.add_dataframe_asset(name)
            batch = asset.add_batch_definition_whole_dataframe("all rows")
            suite = self._context.suites.add(gx.ExpectationSuite(name))
            keys = {}
            for number, expectation in enumerate(expectations):
                made = _made(expectation, str(number))
                keys[str(number)] = expectation
                suite.add_expectation(made)
            definition = self._context.validation_definitions.add(
                gx.ValidationDefinition(name=name, data=batch, suite=suite)
            )
            checkpoint = self._context.checkpoints.add(
                gx.Checkpoint(
                    name=name,
                    validation_definitions=[definition],
                    actions=[UpdateDataDocsAction(name="update the Data Docs", site_names=[_SITE])],
                    result_format="COMPLETE",
                )
            )
            batch_parameters = {"dataframe": frame}
            try:
                done = checkpoint.run(batch_parameters=batch_parameters, run_id=self._run)
                (result,) = done.run_results.values()
            except Exception as error:  # pages that can't be written do not change the verdict
                self._no_docs = error
                result = definition.run(batch_parameters=batch_parameters, result_format="COMPLETE", run_id=self._run)
        return [_evaluated(keys[_key(one)], one) for one in result.results]

    def write_docs(self) -> Path:
        """Returns the index of the Data Docs. Raises if they could not be written."""
        if self._no_docs is not None:
            raise self._no_docs
        if not (self._docs / "index.html").exists():  # no Checkpoint has run: there was nothing to validate
            with _quietly():
                self._context.build_data_docs(site_names=[_SITE])
        return self._docs / "index.html"


@functools.cache
def _class_of(name: str) -> type[UnexpectedRowsExpectation]:
    """Returns an expectation class of this name: pages, results and suites name it, so people know what it is about."""
    return type(name, (UnexpectedRowsExpectation,), {"__module__": __name__, "__doc__": "Expects no wrong rows."})


@dataclass(frozen=True)
class Checked:
    """The result of one expectation about a DataFrame. `unexpected`: the numbers of the rows that do not meet it.

    None: it is about all rows together. With an `error` it says nothing about the rows.
    """

    name: str
    met: bool
    unexpected: list[int] | None
    observed: str
    error: str


class PandasSuite:
    """Validates one pandas DataFrame after the other with the same expectations. It is built once and stays warm."""

    def __init__(self, expectations: Sequence[Any]) -> None:
        self._count = len(expectations)
        config = DataContextConfig(
            store_backend_defaults=InMemoryStoreBackendDefaults(),
            analytics_enabled=False,
            progress_bars=ProgressBarsConfig(globally=False),
        )
        with _quietly():
            context = gx.get_context(mode="ephemeral", project_config=config)
            asset = context.data_sources.add_pandas("epochs").add_dataframe_asset("rows")
            batch = asset.add_batch_definition_whole_dataframe("all rows")
            suite = context.suites.add(gx.ExpectationSuite("gate", expectations=list(expectations)))
            definition = gx.ValidationDefinition(name="gate", data=batch, suite=suite)
            self._definition = context.validation_definitions.add(definition)
            self._kept = context.validation_results_store

    def __len__(self) -> int:
        return self._count

    def validate(self, frame: Any) -> list[Checked]:
        with _quietly():
            result = self._definition.run(batch_parameters={"dataframe": frame}, result_format="COMPLETE")
            for key in self._kept.list_keys():  # with all refused values of every epoch the process would grow for ever
                self._kept.remove_key(key)  # type: ignore[no-untyped-call]
        return [_checked(one) for one in result.results]


def _checked(one: Any) -> Checked:
    """One about single rows has counted elements; `mostly` lets it be met although some rows are unexpected."""
    result, config = one.result or {}, one.expectation_config
    about = {name: value for name, value in config.kwargs.items() if name != "batch_id"}
    named = ", ".join(f"{name}={value!r}" for name, value in about.items())
    unexpected = result.get("unexpected_index_list") if "element_count" in result else None
    rows = [int(index) for index in unexpected] if unexpected is not None else None
    error = _error(one.exception_info or {})
    return Checked(f"{config.type}({named})", bool(one.success), rows, str(result.get("observed_value", "")), error)


def _made(expectation: Expectation, key: str) -> Any:
    meta = {"weir": key}
    match expectation:
        case NoRows(query, meaning, name):
            return _class_of(name)(unexpected_rows_query=query, description=meaning, meta=meta)
        case NotNull(_, column):
            return ExpectColumnValuesToNotBeNull(column=column, meta=meta)


def _key(one: Any) -> str:
    return str(one.expectation_config.meta["weir"])


def _evaluated(expectation: Expectation, one: Any) -> Evaluated:
    error = _error(one.exception_info or {})
    result = one.result or {}
    rows: list[dict[str, Any]] = []
    if isinstance(expectation, NoRows):
        unexpected = int(result.get("observed_value") or 0)
        rows = list((result.get("details") or {}).get("unexpected_rows") or [])
    else:
        unexpected = int(result.get("unexpected_count") or 0)
    return Evaluated(expectation, bool(one.success) and not error, unexpected, rows, error)


def _error(info: dict[str, Any]) -> str:
    """Returns the error's text; `info` describes one exception, or one for each metric that raised."""
    if "raised_exception" in info:
        return str(info.get("exception_message") or "unknown error") if info["raised_exception"] else ""
    texts = [str(i.get("exception_message") or "unknown error") for i in info.values() if i.get("raised_exception")]
    return "; ".join(dict.fromkeys(texts))


def _quietly() -> warnings.catch_warnings[None]:
    """Silences the deprecation warnings that Great Expectations raises about itself."""
    return warnings.catch_warnings(action="ignore")
