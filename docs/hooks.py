"""What MkDocs calls when `make docs` builds the site: README and CHANGELOG become pages, the API reference is made.

Pages are written to be read in the repository, too. So links out of `docs/` are resolved here: to the page or the
picture if the site has it, and to plain text if it is a file of code.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUTSIDE = {"README.md": "index.md", "CHANGELOG.md": "changelog.md"}
"""Pages of the repository's root, and where the site has them."""

API = {
    "Environment and streams": (
        "engine.api.environment",
        "engine.api.streams",
        "engine.api.watermarks",
        "engine.core.watermark_generators",
        "engine.core.tags",
    ),
    "Functions": (
        "engine.core.functions",
        "engine.core.failed_records",
        "engine.core.connected_functions",
        "engine.core.broadcast_functions",
        "engine.core.join_functions",
        "engine.core.timers",
        "engine.core.user_metrics",
    ),
    "State": ("engine.core.state",),
    "Windows": (
        "engine.api.window",
        "engine.core.window",
        "engine.core.triggers",
        "engine.core.builtin_triggers",
        "engine.core.evictors",
    ),
    "Aggregates": ("engine.state.windows.aggregates",),
    "Commit gates": ("engine.core.gates",),
    "Patterns": ("engine.api.patterns", "engine.api.streams.pattern", "engine.core.pattern"),
    "Checkpoints and restarts": ("engine.protocol.config", "engine.protocol.restart", "engine.core.errors"),
}
"""Pages of the API reference, by the modules that define what `engine.api` exports. The longest beginning counts."""

MODULES = {
    "Testing": ("engine.testing",),
    "Kafka": ("engine.connectors.kafka",),
    "Files and tables": ("engine.connectors.files", "engine.connectors.table", "engine.connectors.generator"),
    "Interfaces of connectors": ("engine.core.sources", "engine.core.sinks"),
}
"""Pages for modules of which all public names are for authors."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^(```|~~~)")
_ITEM = re.compile(r"^(\d+\. |- )")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages of the root, the pictures that pages show from elsewhere, and the API reference."""
    for source, name in OUTSIDE.items():
        files.append(File.generated(config, name, abs_src_path=str(ROOT / source)))
    for picture in sorted((ROOT / "benchmarks" / "results").glob("*.png")):
        files.append(File.generated(config, f"results/{picture.name}", abs_src_path=str(picture)))
    for title, text in api_pages().items():
        files.append(File.generated(config, f"api/{page_name(title)}", content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Resolves links, and indents what belongs to a list item by four columns, as Python-Markdown wants it."""
    uri = page.file.src_uri
    if uri.startswith("api/"):
        return markdown
    real = next((source for source, name in OUTSIDE.items() if name == uri), f"docs/{uri}")
    resolved, fenced, width = [], False, 0
    for line in markdown.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            if item := _ITEM.match(line):
                width = len(item[0])
            elif line and not line.startswith(" "):
                width = 0
            elif width and line.startswith(" " * width):
                line = " " * 4 + line[width:]
            line = _LINK.sub(lambda link: _resolved(link, real, uri), line)
        resolved.append(line)
    return "\n".join(resolved)


def _resolved(link: re.Match[str], real: str, uri: str) -> str:
    """Returns a link of the file `real` as the page `uri` has to write it."""
    mark, text, target = link.groups()
    path, hash_, anchor = target.partition("#")
    if "://" in target or not path:
        return link[0]
    inner = _LINK.sub(lambda within: _resolved(within, real, uri), text)
    there = posixpath.normpath(posixpath.join(posixpath.dirname(real), path))
    if there in OUTSIDE:
        there = f"docs/{OUTSIDE[there]}"
    elif there.startswith("benchmarks/results/") and there.endswith(".png"):
        there = there.removeprefix("benchmarks/")
        return f"{mark}[{inner}]({posixpath.relpath(there, posixpath.dirname(uri) or '.')})"
    if not there.startswith("docs/") or (ROOT / there).is_dir():
        return inner  # code, or a folder: the site has no page of it
    to = posixpath.relpath(there.removeprefix("docs/"), posixpath.dirname(uri) or ".")
    return f"{mark}[{inner}]({to}{hash_}{anchor})"


def page_name(title: str) -> str:
    """Returns the file name of a page of the API reference."""
    return f"{title.lower().replace(' ', '-')}.md"


def exported() -> dict[str, str]:
    """Returns the names that `engine.api` exports, each with the module that defines it. Nothing is imported."""
    tree = ast.parse((ROOT / "engine" / "api" / "__init__.py").read_text())
    names: list[str] = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
    )
    imported = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    modules = {alias.asname or alias.name: str(node.module) for node in imported for alias in node.names}
    return {name: modules[name] for name in names}


def api_pages() -> dict[str, str]:
    """Returns the text of each page of the API reference, by its title."""
    placed: dict[str, list[str]] = defaultdict(list)
    for name, module in exported().items():
        fitting = [(len(start), title) for title, starts in API.items() for start in starts if module.startswith(start)]
        if not fitting:
            raise KeyError(f"docs/hooks.py: no page of the API reference has the module {module}, which defines {name}")
        placed[max(fitting)[1]].append(f"{module}.{name}")
    pages = {}
    for title in API:
        entries = sorted(placed[title], key=lambda path: path.rpartition(".")[2].lower())
        pages[title] = f"# {title}\n\nAll names are imported from `engine.api`.\n\n" + _entries(entries)
    for title, modules in MODULES.items():
        options = "    options:\n      show_root_full_path: true\n      show_root_toc_entry: true\n"
        pages[title] = f"# {title}\n\n" + "\n".join(f"::: {module}\n{options}" for module in modules)
    return pages


def _entries(paths: list[str]) -> str:
    return "\n".join(f"::: {path}\n" for path in paths)
