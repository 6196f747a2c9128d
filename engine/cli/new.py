"""`weir new NAME`: writes a job that runs, with its drill, its asset and schedules in Dagster, and a test.

In a checkout of Weir the job becomes a folder in `assets/`. Anywhere else it is a package of its own, with the
definitions that Dagster loads.
"""

from __future__ import annotations

import keyword
import re
import sys
from importlib import resources
from importlib.machinery import PathFinder
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from engine.cli.shared import console
from engine.core.errors import WeirError

Name = Annotated[str, typer.Argument(help="name of the job: lower-case letters, digits and _", metavar="NAME")]

_IN_PACKAGE = ("__init__.py", "source.py", "job.py", "drill.py", "asset.py")
_RESERVED = ("assets", "checks", "engine", "orchestration", "tests", "weir")


def new(name: Name) -> None:
    """Write a new job with a source, a drill, an asset with schedules in Dagster, and a test. They pass as they are."""
    checkout = is_checkout(Path.cwd())
    made = write_job(name, Path.cwd())
    package = f"assets.{name}" if checkout else name
    test = next(path for path in made if path.name == f"test_{name}.py")
    steps = {
        f"weir run {package}.job:job": "runs it until Ctrl-C; its table is in .weir",
        f"python -m pytest {test}": "tests it, without Spark",
        f"weir drill {package}.job:job": "kills a worker of a copy of it, and audits every row",
        "make ui" if checkout else f"dagster dev -m {package}.definitions": "shows it in Dagster",
    }
    width = max(map(len, steps))
    lines = [*(f"made {path}" for path in made), *(f"  {step:<{width}}  # {what}" for step, what in steps.items())]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)


def write_job(name: str, folder: Path) -> list[Path]:
    """Writes the files of a job, and returns their paths within the folder. It replaces none."""
    checkout = is_checkout(folder)
    _check_name(name, folder, checkout)
    package = Path("assets", name) if checkout else Path(name)
    tests = Path("tests", "assets") if checkout else Path("tests")
    values = {"name": name, "package": ".".join(package.parts), "title": name.replace("_", " ").capitalize()}
    texts = {package / file: _filled(file, values) for file in _IN_PACKAGE}
    if not checkout:
        texts[package / "definitions.py"] = _filled("definitions.py", values)
    texts[tests / f"test_{name}.py"] = _filled("test.py", values)
    if there := [path for path in texts if (folder / path).exists()]:
        raise WeirError(f"{folder / there[0]} is there already: choose another name, or delete it")
    if not (folder / tests / "__init__.py").exists():
        texts[tests / "__init__.py"] = ""  # so that pytest imports from the folder
    for path, text in texts.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return sorted(texts)


def is_checkout(folder: Path) -> bool:
    """Says whether the folder is a checkout of Weir, whose jobs are in `assets/`."""
    return (folder / "assets" / "__init__.py").exists() and (folder / "orchestration" / "definitions.py").exists()


def _filled(file: str, values: dict[str, str]) -> str:
    template = resources.files("engine.cli").joinpath("template", f"{file}.txt").read_text()
    return _sorted_imports(Template(template).substitute(values))


def _sorted_imports(text: str) -> str:
    """Sorts each block of `from ... import ...` lines: where the job's own modules belong depends on its name."""
    return re.sub(
        r"(?:^[ ]*from \S+ import .*\n)+", lambda block: "".join(sorted(block[0].splitlines(True))), text, flags=re.M
    )


def _check_name(name: str, folder: Path, checkout: bool) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise WeirError(f"{name!r} can't be the name of a job: use lower-case letters, digits and _, as in page_views")
    if checkout:
        return
    elsewhere = [place for place in sys.path if place and Path(place).resolve() != folder.resolve()]
    taken = name in _RESERVED or name in sys.stdlib_module_names or PathFinder.find_spec(name, elsewhere) is not None
    if taken:
        raise WeirError(f"{name!r} is the name of an installed Python package: choose another")
