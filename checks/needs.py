"""Says which extra of Weir has to be installed for audits."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from engine.core.errors import WeirError


def need_great_expectations(what: str) -> None:
    """Raises an error before anything runs for minutes whose end needs Great Expectations."""
    if find_spec("great_expectations") is None:
        raise WeirError(
            f"{what} needs Great Expectations, which is not installed for {sys.executable}: pip install 'weir[audit]'"
        )
