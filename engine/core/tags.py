"""`OutputTag`: names a side output. An edge with a tag gets what was emitted under it, and nothing else (A8)."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class OutputTag:
    name: str
    schema: pa.Schema
