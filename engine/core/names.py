"""Names that become parts of paths: of jobs and tables. An allow-list keeps them inside the store."""

from __future__ import annotations

import re

from engine.core.errors import JobError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.=-]{0,99}")


def check_name(what: str, name: str) -> str:
    """Returns the name if it can be part of a path; raises an error that says what a name may contain."""
    if _NAME.fullmatch(name):
        return name
    raise JobError(
        f"{name[:100]!r} can't be the name of a {what}: write up to 100 letters, digits and _ . = -, with a letter or "
        "digit first"
    )
