"""What is wrong with a job as it was written. Here, below the API, because both raise it."""

from __future__ import annotations

from engine.core.errors import WeirError


class JobError(WeirError):
    """The job can't be built: the author's to mend, before anything runs."""
