"""Says what to install for a connector whose library is an extra of Weir."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from engine.core.errors import JobError


def needs_extra(module: str, extra: str, connector: str) -> None:
    """Raises a JobError unless the library is installed. It imports nothing: a job's code stays quick to load."""
    if find_spec(module) is None:
        raise JobError(
            f"{connector} needs the library {module}, which is not installed for {sys.executable}: "
            f"pip install 'weir[{extra}]'"
        )
