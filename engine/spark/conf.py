"""Spark's configuration as a user gives it with `--conf`. A secret is given by the name of an environment variable.

`env:S3_KEY` stands for the content of the variable S3_KEY. Only the name is kept in the run folder; each JobMaster
looks the variable up again. The values reach Spark's JVM in a file, since everybody can read a process' arguments.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from engine.core.errors import WeirError

_BY_NAME = "env:"
_SECRET = r"(?i)secret|password|token|access[.]?key"  # the names whose values Spark hides by default


def resolved(conf: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the configuration with the content of the variables that it names."""
    return {name: _value(name, given, environ) for name, given in conf.items()}


def _value(name: str, given: str, environ: Mapping[str, str]) -> str:
    if not given.startswith(_BY_NAME):
        return given
    variable = given.removeprefix(_BY_NAME)
    if variable not in environ:
        raise WeirError(
            f"--conf {name}={given}: the environment variable {variable} is not set; set it where the job is started"
        )
    return environ[variable]


def literal_secrets(conf: Mapping[str, str]) -> list[str]:
    """Returns the names of secrets whose values are written out."""
    return [name for name, given in conf.items() if re.search(_SECRET, name) and not given.startswith(_BY_NAME)]


def redaction(conf: Mapping[str, str]) -> dict[str, str]:
    """Returns the setting by which Spark also hides the values that came from variables, whatever their names."""
    hidden = [re.escape(name) for name, given in conf.items() if given.startswith(_BY_NAME)]
    return {"spark.redaction.regex": "|".join([_SECRET, *hidden])} if hidden else {}


def write_properties(path: Path, settings: Mapping[str, str]) -> None:
    """Writes a file of Java properties that only its owner can read."""
    lines = [_escaped_name(name) + "=" + _escaped(value) + "\n" for name, value in settings.items()]
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.writelines(lines)


def _escaped_name(name: str) -> str:
    return re.sub("([=: #!])", r"\\\1", _escaped(name))


def _escaped(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    if escaped.startswith(" "):
        escaped = "\\u0020" + escaped[1:]
    units = escaped.encode("utf-16-be")
    codes = (int.from_bytes(units[place : place + 2]) for place in range(0, len(units), 2))
    return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)
