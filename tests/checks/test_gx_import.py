"""Goal: one module imports Great Expectations, and the import never ends the process."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("engine", "assets", "checks", "orchestration")

# `python -c` has a __main__ without __file__ and __spec__, as a Dagster run worker has.
IMPORT = """
import sys
main = sys.modules["__main__"]
assert main.__spec__ is None and not hasattr(main, "__file__")
import checks._gx
print("still here")
"""


def test_importing_it_in_a_process_without_a_main_file_does_not_end_the_process() -> None:
    run = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert run.stdout == "still here\n", run.stderr[-2000:]


def test_only_one_module_imports_it() -> None:
    importers = [
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if "great_expectations" in imported(path)
    ]
    assert importers == ["checks/_gx.py"]


def test_specs_drills_and_the_command_line_load_neither_spark_nor_great_expectations() -> None:
    jobs = "assets.pageviews.drill, assets.failed_logins.drill"
    light = f"import sys, checks.cli, {jobs}; print([m for m in sys.modules if m in sys.argv])"
    run = subprocess.run(
        [sys.executable, "-c", light, "pyspark", "great_expectations", "dagster"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=300,
    )
    assert run.stdout == "[]\n", run.stderr[-2000:]


def imported(path: Path) -> set[str]:
    """Returns the packages that a module imports, also inside of functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found
