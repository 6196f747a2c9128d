"""File sources for Parquet, CSV and JSON lines. They read a file, a folder, a glob or a Weir table, once or watched."""

from engine.connectors.files.csv import CsvSource
from engine.connectors.files.jsonlines import JsonSource
from engine.connectors.files.parquet import ParquetSource
from engine.core.sources import MALFORMED

__all__ = ["MALFORMED", "CsvSource", "JsonSource", "ParquetSource"]
