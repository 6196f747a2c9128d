"""The one module that imports Great Expectations.

Great Expectations imports `pyspark.sql.connect`, which takes a process whose `__main__` has neither `__spec__` nor
`__file__` for a doctest and ends it with exit code 0. A Dagster run worker is such a process, so this module gives
`__main__` a `__file__` first. It also switches telemetry off before the import, which reads that setting.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Sequence
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
    from great_expectations.data_context.types.base import (
        DataContextConfig,
        InMemoryStoreBackendDefaults,
        ProgressBarsConfig,
    )
    from great_expectations.expectations.core.expect_column_values_to_not_be_null import ExpectColumnValuesToNotBeNull
    from great_expectations.expectations.core.unexpected_rows_expectation import UnexpectedRowsExpectation

logging.getLogger("great_expectations").setLevel(logging.ERROR)

_SITE = "weir"


class Suites:
    """Validates DataFrames one after the other (their view has a fixed name), and writes Data Docs about them."""

    def __init__(self, docs: Path) -> None:
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
            result = definition.run(batch_parameters={"dataframe": frame}, result_format="COMPLETE")
        return [_evaluated(keys[_key(one)], one) for one in result.results]

    def write_docs(self) -> Path:
        with _quietly():
            self._context.build_data_docs(site_names=[_SITE])
        return self._docs / "index.html"


def _made(expectation: Expectation, key: str) -> Any:
    meta = {"weir": key}
    match expectation:
        case NoRows(query, meaning):
            return UnexpectedRowsExpectation(unexpected_rows_query=query, description=meaning, meta=meta)
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
