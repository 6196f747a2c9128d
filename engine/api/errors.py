"""`JobError`: the job is written wrongly, and its author has to change it before anything runs."""

from __future__ import annotations

from engine.graph.errors import JobError as JobError
