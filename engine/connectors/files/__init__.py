"""Files as sources: Parquet, CSV and JSON lines; a file, a folder, a glob or a Weir table, read once or watched."""

from engine.connectors.files.csv import CsvSource
from engine.connectors.files.jsonlines import JsonSource
from engine.connectors.files.parquet import ParquetSource
from engine.core.sources import MALFORMED

__all__ = ["MALFORMED", "CsvSource", "JsonSource", "ParquetSource"]
