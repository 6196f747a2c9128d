"""Goal: what `weir new` writes passes as it is, in a folder of one's own and in a checkout of Weir.

`tests/cluster/test_wheel.py` runs the job that it makes on Spark.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from engine.cli.new import is_checkout, write_job
from engine.core.errors import WeirError
from tests.cli.command import WEIR

ROOT = Path(__file__).parents[2]
PACKAGE = ["__init__.py", "asset.py", "drill.py", "job.py", "source.py"]


def called(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "PYTHONPATH")}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300)


def passes(folder: Path, *command: str) -> str:
    done = called(folder, *command)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The folders of a checkout that a job is added to; the engine is the one that is installed."""
    (tmp_path / "assets").mkdir()
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "assets" / "__init__.py", tmp_path / "assets")
    shutil.copy(ROOT / "tests" / "__init__.py", tmp_path / "tests")
    shutil.copytree(ROOT / "orchestration", tmp_path / "orchestration")
    return tmp_path


def test_a_job_in_a_folder_of_one_s_own_passes_its_test_and_loads_in_dagster(tmp_path: Path) -> None:
    said = passes(tmp_path, *WEIR, "new", "orders")
    made = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.py"))
    assert made == [f"orders/{file}" for file in sorted([*PACKAGE, "definitions.py"])] + [
        "tests/__init__.py",
        "tests/test_orders.py",
    ]
    assert all(f"made {path}" in said for path in made) and "weir run orders.job:job" in said
    tested = passes(tmp_path, sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-k", "not dagster")
    assert "3 passed" in tested  # the fourth loads the definitions, as is done below
    load = "from orders.definitions import defs; print([job.name for job in defs.get_repository_def().get_all_jobs()])"
    jobs = passes(tmp_path, sys.executable, "-c", load)
    assert all(f"'orders_{action}'" in jobs for action in ("start", "drill", "savepoint", "upgrade"))
    assert "sink out" in passes(tmp_path, *WEIR, "describe", "orders.job:job")


def test_a_job_in_a_checkout_is_a_folder_in_assets_in_the_style_of_the_checkout(checkout: Path) -> None:
    said = passes(checkout, *WEIR, "new", "late_orders")
    assert "weir run assets.late_orders.job:job" in said and "make ui" in said
    assert sorted(path.name for path in (checkout / "assets" / "late_orders").glob("*.py")) == PACKAGE
    assert "4 passed" in passes(checkout, sys.executable, "-m", "pytest", "-q", "-W", "ignore", "tests/assets")
    for package in ("engine", "checks"):  # so that ruff knows whose imports are the checkout's own
        (checkout / package).symlink_to(ROOT / package)
    shutil.copy(ROOT / "pyproject.toml", checkout)
    passes(checkout, sys.executable, "-m", "ruff", "check", "assets", "tests")
    passes(checkout, sys.executable, "-m", "ruff", "format", "--check", "assets", "tests")


def test_this_repository_is_a_checkout() -> None:
    assert is_checkout(ROOT)


@pytest.mark.parametrize("name", ["Orders", "1st", "my-orders", "class", "", "a b", "../x"])
def test_a_name_that_python_or_dagster_can_t_take_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(WeirError, match="use lower-case letters, digits and _"):
        write_job(name, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["json", "pyarrow", "engine", "assets", "tests"])
def test_a_job_does_not_hide_an_installed_package(name: str, tmp_path: Path) -> None:
    with pytest.raises(WeirError, match="is the name of an installed Python package: choose another"):
        write_job(name, tmp_path)


def test_no_file_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "orders").mkdir()
    (tmp_path / "orders" / "job.py").write_text("mine")
    with pytest.raises(WeirError, match=r"orders/job.py is there already: choose another name"):
        write_job("orders", tmp_path)
    assert [path.name for path in tmp_path.rglob("*.py")] == ["job.py"]
