"""Metadata values that several definitions show: tables of rows, links to the pages of audits and rehearsals."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from engine.host.places import local_folder
from orchestration.ui import DATA_DOCS, DATA_DOCS_URL


def rows_table(rows: Sequence[dict[str, Any]]) -> dg.TableMetadataValue:
    """Returns a table with the columns of all rows; a cell is empty if its row has no such column."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [dg.TableColumn(name, _type_of([row.get(name) for row in rows])) for name in names]
    return dg.MetadataValue.table(
        [dg.TableRecord({n: row.get(n) for n in names}) for row in rows], dg.TableSchema(columns)
    )


def _type_of(values: Sequence[Any]) -> str:
    known = {type(value) for value in values if value is not None}
    return {int: "int", float: "float", bool: "bool"}.get(known.pop(), "string") if len(known) == 1 else "string"


def data_docs(page: str, store: str) -> dict[str, dg.MetadataValue[Any]]:
    """Returns a link to a page of Great Expectations. No page: nothing."""
    return page_link("data_docs", page, store) if page else {}


def page_link(name: str, page: str, store: str) -> dict[str, dg.MetadataValue[Any]]:
    """Returns a link to a page in the store if `make ui` serves it, else its path.

    The link names no host and no port: the next `make ui` may have another one.
    """
    served, root = DATA_DOCS_URL in os.environ, local_folder(store)
    if not served or not Path(page).is_relative_to(root):
        return {name: dg.MetadataValue.path(page)}
    return {name: dg.MetadataValue.url(f"{DATA_DOCS}/{Path(page).relative_to(root).as_posix()}")}
