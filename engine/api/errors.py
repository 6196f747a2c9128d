"""What is wrong with a job as it was written: the author's to mend, before anything runs."""

from __future__ import annotations

from engine.graph.errors import JobError as JobError
