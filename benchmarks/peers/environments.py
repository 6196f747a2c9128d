"""Makes a virtualenv for each peer, once, outside of the checkout, and runs scripts of this folder in it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyspark
import yaml

from benchmarks.peer import ended
from benchmarks.report import Say
from engine.spark.java import prepare_environment

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "weir" / "peers"
FLINK_JARS = ("org.apache.flink:flink-sql-parquet:2.3.0", "org.apache.flink:flink-statebackend-rocksdb:2.3.0")


def flink(say: Say) -> Path:
    """Returns a Python with PyFlink, which contains a whole Flink. Parquet also needs Hadoop's classes, from Spark."""
    python = flink_python(say)
    libraries = _flink_home(python) / "lib"
    for artifact in FLINK_JARS:
        _, name, version = artifact.split(":")
        if not (libraries / f"{name}-{version}.jar").exists():
            _fetch(artifact, libraries)
    for jar in Path(pyspark.__file__).parent.glob("jars/hadoop-client-*.jar"):
        if not (libraries / jar.name).exists():
            shutil.copy(jar, libraries)
    return python


def flink_python(say: Say) -> Path:
    """Returns a Python with PyFlink as it is installed, without the jars of the benchmarks."""
    return _environment("flink", say)


def bytewax(say: Say) -> Path:
    return _environment("bytewax", say)


def run_flink_job(say: Say, javac: Path, name: str, arguments: list[str], folder: Path, patience_s: float) -> str:
    """Compiles NAME.java of this folder against the Flink inside PyFlink, and runs it in one process with Flink."""
    home = _flink_home(flink(say))
    classes = folder / "classes"
    run_peer(javac, ["-d", str(classes), "-cp", f"{home}/lib/*", f"{name}.java"], folder, 60)
    opens = yaml.safe_load((home / "conf" / "config.yaml").read_text())["env"]["java"]["opts"]["all"].split()
    command = [*opens, "-cp", f"{classes}:{home}/lib/*", name, *arguments]
    return run_peer(javac.with_name("java"), command, folder, patience_s)


def find_javac() -> Path | None:
    """Returns javac with links resolved, so that the `java` of the same JDK is beside it."""
    found = shutil.which("javac")
    return Path(found).resolve() if found else None


def run_peer(program: Path, arguments: list[str], folder: Path, patience_s: float, **environment: str) -> str:
    """Runs a program in this folder and returns its output. None of its processes is left, even after an error."""
    log = folder / "log"
    variables = {**os.environ, **prepare_environment(), "PYTHONPATH": str(HERE), **environment}
    with log.open("wb") as file:
        process = subprocess.Popen(
            [str(program), *arguments],
            cwd=HERE,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    with ended(process):
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"{program.name} of {folder.name} took longer than {patience_s:.0f} s") from None
    said = log.read_text(errors="replace")
    if process.returncode:
        raise RuntimeError(f"{program.name} of {folder.name} failed:\n" + "\n".join(said.splitlines()[-15:]))
    return said


def result_of(said: str) -> Any:
    lines = [line for line in said.splitlines() if "RESULT" in line]
    return json.loads(lines[-1].split("RESULT", 1)[1])


def tallied(folder: Path) -> tuple[int, float]:
    """Returns the rows of all subtasks of a peer together, and their seconds, without the warm-up."""
    tallies: list[Mapping[str, Any]] = [json.loads(file.read_text()) for file in folder.glob("tally-*.json")]
    measured = [tally for tally in tallies if tally["first"] is not None]
    seconds = max(tally["last"] for tally in measured) - min(tally["first"] for tally in measured)
    return sum(tally["rows"] for tally in measured), seconds


def _environment(name: str, say: Say) -> Path:
    lock = HERE / f"{name}.lock"
    folder = CACHE / f"{name}-{hashlib.sha256(lock.read_bytes()).hexdigest()[:12]}"
    python = folder / "bin" / "python"
    if (folder / "complete").exists():
        return python
    say(f"installing {name} into {folder} (once; some minutes)")
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check", "--require-hashes"]
    subprocess.run([*install, "-r", str(lock)], check=True)
    (folder / "complete").touch()
    return python


def _flink_home(python: Path) -> Path:
    (home,) = python.parent.parent.glob("lib/python*/site-packages/pyflink")
    return home


def _fetch(artifact: str, into: Path) -> None:
    if shutil.which("mvn") is None:
        raise RuntimeError(
            f"Flink needs {artifact}, and there is no mvn on PATH to fetch it (Debian: apt install maven)"
        )
    copy = ["mvn", "-q", "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={into}"]
    subprocess.run(copy, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
