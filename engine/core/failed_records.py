"""What becomes of records that a source can't read, or that an operator can't process."""

from __future__ import annotations

from typing import Literal

from engine.core.tags import OutputTag

Policy = Literal["fail", "skip", "dead_letter"]
"""`fail` ends the job, `skip` counts the record and goes on, `dead_letter` also emits it to a side output."""

POLICIES = ("fail", "skip", "dead_letter")

FAILED = OutputTag("failed", "operator string, reason string, line string, record string")
"""The side output of an operator that emits the records that it can't process (`on_error("dead_letter")`).

`operator` is its uid, `reason` the error, `line` the author's line that raised it, and `record` the record as JSON.
"""
