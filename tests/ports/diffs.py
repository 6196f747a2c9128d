"""Writes the differences between originals and ports into the pages of the guide: `python -m tests.ports.diffs`.

A page names the two files in the first lines of a `diff` example; the rest of the example is written here.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

from tests.ports.pairs import ROOT

PAGES = [ROOT / "docs" / "guide" / name for name in ("from-pyflink.md", "from-spark.md")]
EXAMPLE = re.compile(r"^```diff\n--- (\S+)\n\+\+\+ (\S+)\n.*?^```$", re.MULTILINE | re.DOTALL)


def with_differences(text: str) -> str:
    """Returns the text of a page with the differences as they are now."""
    return EXAMPLE.sub(lambda example: _example(example[1], example[2]), text)


def _example(before: str, after: str) -> str:
    old, new = ((ROOT / name).read_text().splitlines() for name in (before, after))
    lines = list(difflib.unified_diff(old, new, before, after, n=1, lineterm=""))
    shown = ["@@" if line.startswith("@@") else line.rstrip() for line in lines]
    return "\n".join(["```diff", *shown, "```"])


def main() -> None:
    for page in PAGES:
        Path(page).write_text(with_differences(page.read_text()))


if __name__ == "__main__":
    main()
