"""A slot whose code is not the JobMaster's is refused: the fingerprint of a job's graph covers its code."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.host.launch import LaunchOptions
from engine.process.loading import load

JOB = """
from shop_of_a_test.orders.source import ROWS
def job(env):
    env.from_elements(ROWS, "a long").print(uid="out")
"""
FILES = {
    "__init__.py": "",
    "shared.py": "from . import numbers\nROWS = [{'a': numbers.ONE}]\n",
    "numbers.py": "ONE = 1\n",
    "unused.py": "import nosuchlibrary\n",
    "orders/__init__.py": "",
    "orders/source.py": "from shop_of_a_test.shared import ROWS\n",
    "orders/job.py": JOB,
    "orders/asset.py": "import shop_of_a_test.unused\n",
    "orders/broken.py": "def (:\n",
    "orders/too_far.py": "from ...elsewhere import it\nimport nosuchlibrary\n",
    "bills/__init__.py": "",
    "bills/job.py": "",
}


@pytest.fixture
def package(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "shop_of_a_test" / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(text)
    return tmp_path / "shop_of_a_test"


@pytest.fixture
def fingerprint(package: Path) -> Iterator[Callable[[], object]]:
    def fresh(place: Path = package.parent) -> object:
        for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
            del sys.modules[name]
        sys.path_importer_cache.clear()
        sys.path.insert(0, str(place))
        sys.dont_write_bytecode, before = True, sys.dont_write_bytecode
        try:
            return load(LaunchOptions(path=f"{package.name}.orders.job:job", name="orders")).fingerprint
        finally:
            sys.path.remove(str(place))
            sys.dont_write_bytecode = before

    yield fresh
    for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
        del sys.modules[name]


@pytest.mark.parametrize("file", ["orders/job.py", "orders/source.py", "shared.py", "numbers.py", "__init__.py"])
def test_a_change_of_what_a_slot_runs_is_seen_also_in_modules_that_several_jobs_share(
    file: str, package: Path, fingerprint: Callable[[], object]
) -> None:
    before = fingerprint()
    assert fingerprint() == before
    (package / file).write_text((package / file).read_text() + "\nTWO = 2\n")
    assert fingerprint() != before


@pytest.mark.parametrize("file", ["unused.py", "bills/job.py", "orders/asset.py"])
def test_a_change_of_what_no_slot_imports_does_not_fail_a_running_job(
    file: str, package: Path, fingerprint: Callable[[], object]
) -> None:
    before = fingerprint()
    (package / file).write_text("TWO = 2\n")
    assert fingerprint() == before


def test_an_archive_of_the_same_code_is_the_same(package: Path, fingerprint: Callable[..., object]) -> None:
    archive = package.parent / "code.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in FILES:
            file.write(package / name, f"{package.name}/{name}")
    before = fingerprint()
    moved = package.rename(package.parent / "moved_away")
    assert fingerprint(archive) == before
    assert moved.is_dir()
