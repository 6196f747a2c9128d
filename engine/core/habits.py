"""Says what to write in place of a mistake that only Python notices, when a function of the job runs."""

from __future__ import annotations

from engine.core.nearest import nearest

_IN_OPEN = ("get_state", "get_list_state", "get_map_state", "get_reducing_state", "get_aggregating_state")
_INSTEAD = {
    **{name: f"call {name}(...) in open(self, context), and keep what it returns in self" for name in _IN_OPEN},
    "get_metrics_group": "call get_metrics_group() in open(self, context), and keep what it returns in self",
    "output": "write yield TAG, record",
    "collect": "return a list of records, or yield them",
}


def instead(error: BaseException) -> str:
    """Returns what to write if the error is such a mistake; otherwise nothing."""
    match error:
        case AttributeError():
            return _of_attribute(error)
        case TypeError():
            return _of_types(str(error))
        case KeyError(args=(int(),)):
            return "a record is a dict: its fields have names and no numbers, as in record['name']"
    return ""


def _of_attribute(error: AttributeError) -> str:
    given, name = error.obj, error.name
    if str(error).endswith("object attribute 'value' is read-only"):
        return "write update(value)"
    if name is None or given is None:
        return ""
    if isinstance(given, dict):
        return f"a record is a dict: its fields are read as in record[{name!r}]"
    bases = [base.__module__ for base in type(given).__mro__]
    if bases[0].startswith("engine."):
        return _INSTEAD.get(name) or _methods(given, name)
    if "engine.core.functions" in bases:
        return f"set self.{name} in open(self, context)"
    return ""


def _methods(given: object, name: str) -> str:
    known = [method for method in dir(given) if not method.startswith("_")]
    return nearest(name, known).removeprefix("; ") or f"it has {', '.join(known)}"


def _of_types(text: str) -> str:
    if "'method'" in text:
        return "a method is called with parentheses, as in state.value()"
    if "'NoneType'" in text:
        return "a field that is null and a state without a value are None: write, for example, (state.value() or 0)"
    return ""
