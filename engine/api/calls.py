"""Explains calls of the API with wrong arguments, which Python refuses before Weir sees them."""

from __future__ import annotations

import inspect
import re

import engine.api
from engine.api.foreign import ARGUMENTS
from engine.core.nearest import nearest

_UNKNOWN = re.compile(r"(\w+)(?:\.(\w+))?\(\) got an unexpected keyword argument '(\w+)'")
_MISSING = re.compile(r"(\w+)(?:\.(\w+))?\(\) missing \d+ required [\w-]+(?: [\w-]+)? arguments?: (.*)")
_MEANT = {
    "uid": "a name of the operator that stays, by which a restart finds what it keeps",
    "schema": 'the fields of its records, as in schema="id long, name string"',
}


_MAKERS = {
    "WatermarkStrategy": 'WatermarkStrategy.for_bounded_out_of_orderness("10 s").with_timestamps(COLUMN)',
    "Pattern": 'Pattern.begin("name")',
}


def explained(error: BaseException) -> str:
    """Returns what to write if the error is a call of `engine.api` with wrong arguments; otherwise nothing."""
    if not isinstance(error, TypeError):
        return ""
    if (found := _UNKNOWN.search(str(error))) and (known := _arguments(found[1], found[2])):
        instead = ARGUMENTS.get(found[3], "")
        said = f": {instead}" if instead else nearest(found[3], known)
        return f"{_name(found)} has no argument {found[3]!r}{said} (it takes {', '.join(known)})"
    if (found := _MISSING.search(str(error))) and (known := _arguments(found[1], found[2])):
        if found[2] in (None, "__init__") and found[1] in _MAKERS:
            return f"{found[1]} is made by a call: write {_MAKERS[found[1]]}"
        missing = re.findall(r"'(\w+)'", found[3])
        told = [f"{name}=... ({_MEANT[name]})" if name in _MEANT else f"{name}=..." for name in missing]
        return f"{_name(found)} also needs {' and '.join(told)}"
    return ""


def _name(found: re.Match[str]) -> str:
    return ".".join(part for part in (found[1], found[2]) if part and part != "__init__")


def _arguments(owner: str, method: str | None) -> list[str]:
    """Returns the arguments of a function or a method of `engine.api`; none if it is not one."""
    function = getattr(engine.api, owner, None) if owner in engine.api.__all__ else None
    if method is not None:
        function = getattr(function, method, None)
    return [name for name in inspect.signature(function).parameters if name != "self"] if callable(function) else []
