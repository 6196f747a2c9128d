"""Goal: who installs the wheel, without any extra, makes and runs a job in a folder of his own.

Topology: a fresh virtualenv with the wheel of this checkout; it sees the pinned packages, except those of the extras.
Checks: the table and the test of the job that `weir new` makes, what a missing extra says, and that somebody else's
package `engine` is named.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine.cli.new import write_job

ROOT = Path(__file__).parents[2]
EXTRAS = ("dagster", "great_expectations", "minio")
SHIPPED = ("engine", "checks", "orchestration", "weir.py", "pyproject.toml", "README.md", "LICENSE")

READ = """
import engine.testing
from engine.connectors.table import read_table
from engine.store.opening import open_store

rows = read_table(open_store(".weir"), "orders/tables/totals").to_pylist()
print(sorted({row["kind"] for row in rows}), sum(row["events"] for row in rows))
"""


@dataclass(frozen=True)
class Installed:
    wheel: Path
    venv: Path

    def run(
        self, command: str, *arguments: str, folder: Path, python_path: str = ""
    ) -> subprocess.CompletedProcess[str]:
        outside = ("PYTHONPATH", "PYSPARK_PYTHON", "WEIR_STORE", "WEIR_CONFIG", "COLUMNS")
        environ = {name: value for name, value in os.environ.items() if name not in outside}
        environ |= {"PYTHONPATH": python_path} if python_path else {}
        return subprocess.run(
            [str(self.venv / "bin" / command), *arguments],
            cwd=folder,
            env=environ,
            capture_output=True,
            text=True,
            timeout=300,
        )


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    work = tmp_path_factory.mktemp("wheel")
    source, venv = work / "source", work / "venv"
    for name in SHIPPED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        source.mkdir(exist_ok=True)
        copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    _call([*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work), str(source)])
    (wheel,) = work.glob("weir-*.whl")
    _call([sys.executable, "-m", "venv", "--without-pip", str(venv)])
    _call([*pip, "--python", str(venv / "bin" / "python"), "install", "--no-deps", "--no-index", str(wheel)])
    libraries = work / "libraries"
    libraries.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.lower().startswith((*EXTRAS, "weir", "__editable__")):
            (libraries / entry.name).symlink_to(entry)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "pinned.pth").write_text(f"{libraries}\n")
    return Installed(wheel, venv)


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a job as `weir new` makes it."""
    write_job("orders", tmp_path)
    return tmp_path


def test_the_wheel_is_typed_and_holds_no_job_of_this_checkout(installed: Installed) -> None:
    names = zipfile.ZipFile(installed.wheel).namelist()
    assert {"engine/py.typed", "checks/py.typed", "orchestration/py.typed", "weir.py"} <= set(names)
    assert not [name for name in names if name.startswith(("assets/", "tests/", "benchmarks/"))]


def test_a_job_in_a_folder_of_one_s_own_runs_without_any_extra(installed: Installed, tmp_path: Path) -> None:
    folder = tmp_path
    made = installed.run("weir", "new", "orders", folder=folder)
    assert made.returncode == 0, made.stderr
    missing = f"import importlib.util as u; print([name for name in {EXTRAS} if u.find_spec(name)])"
    assert installed.run("python", "-c", missing, folder=folder).stdout == "[]\n"
    assert installed.run("weir", "--version", folder=folder).stdout == "weir 0.1.0\n"
    ran = installed.run("weir", "run", "orders.job:job", "--param", "rows=5000", "--param", "rate=0", folder=folder)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    shown = installed.run("python", "-c", READ, folder=folder)
    assert shown.stdout == "['blue', 'green', 'red'] 5000\n", shown.stderr
    tested = installed.run("python", "-m", "pytest", "-q", "tests", folder=folder)
    assert "3 passed, 1 skipped" in tested.stdout, "the test of Dagster is skipped where there is none"


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["weir", "run", "orders.job:job", "--store", "s3://bucket/weir"], "s3"),
        (["weir", "jobs", "--store", "s3://bucket/weir"], "s3"),
        (["weir", "audit", "orders.job:job"], "audit"),
        (["weir", "drill", "orders.job:job"], "audit"),
        (["python", "-c", "import orchestration.spec"], "dagster"),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else given,
)
def test_a_missing_extra_is_named(arguments: list[str], extra: str, installed: Installed, folder: Path) -> None:
    done = installed.run(*arguments, folder=folder)
    assert done.returncode == 1 and f"pip install 'weir[{extra}]'" in done.stderr, done.stderr


@pytest.mark.parametrize("where", ["in the folder", "on the search path"])
def test_somebody_else_s_package_engine_is_named(where: str, installed: Installed, folder: Path) -> None:
    """It would be imported by every process of the job, which then died without a word about it."""
    other = folder if where == "in the folder" else folder / "lib"
    (other / "engine").mkdir(parents=True)
    (other / "engine" / "__init__.py").write_text("raise SystemExit('the engine of a game')")
    done = installed.run(
        "weir", "run", "orders.job:job", folder=folder, python_path=str(other) if other != folder else ""
    )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {other / 'engine' / '__init__.py'} hides Weir's own package `engine`")
    assert "rename" in done.stderr and "the engine of a game" not in done.stderr
