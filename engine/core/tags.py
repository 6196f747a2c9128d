"""`OutputTag` names a side output. An edge with a tag carries only the records emitted under that tag (A8)."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa


@dataclass(frozen=True)
class OutputTag:
    name: str
    schema: pa.Schema
