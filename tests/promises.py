"""Prints which tests show which promise of SEMANTICS.md: `make promises`.

A test carries the ids as a marker, `@pytest.mark.promise("D4")`. A promise that no test carries is not kept yet: "—".
"""

import contextlib
import io
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

SEMANTICS = Path(__file__).resolve().parents[2] / "shared" / "SEMANTICS.md"


class PromiseCollector:
    """A pytest plugin: promise id → node ids of the tests that carry it."""

    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = defaultdict(list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            name = item.nodeid.split("[")[0]  # the cases of a parametrised test are one line
            for promise in dict.fromkeys(str(arg) for mark in item.iter_markers("promise") for arg in mark.args):
                if name not in self.tests[promise]:
                    self.tests[promise].append(name)


def listed_promises(text: str) -> list[str]:
    """The ids that SEMANTICS.md lists, in its order."""
    return re.findall(r"^- ([A-Z]\d+) ", text, re.MULTILINE)


def table(listed: Sequence[str], tests: Mapping[str, Sequence[str]]) -> str:
    """One block per id, listed ones first, then those that only tests know."""
    unknown = sorted(set(tests) - set(listed))
    width = max((len(promise) for promise in [*listed, *unknown]), default=0)
    lines = []
    for promise in [*listed, *unknown]:
        for label, test in zip([promise, *[""] * len(tests.get(promise, ()))], tests.get(promise, ["—"]), strict=False):
            lines.append(f"{label:<{width}}  {test}")
    if listed:
        kept = sum(1 for promise in listed if tests.get(promise))
        lines.append(f"\n{kept} of {len(listed)} promises have a test.")
        if unknown:
            lines.append(f"Not in SEMANTICS.md: {', '.join(unknown)}")
    return "\n".join(lines) or "No test carries a promise."


def main() -> int:
    collector = PromiseCollector()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "tests"], plugins=[collector])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(output.getvalue(), file=sys.stderr)
        return int(code)
    listed = listed_promises(SEMANTICS.read_text()) if SEMANTICS.is_file() else []
    print(table(listed, collector.tests))
    return 0


if __name__ == "__main__":
    sys.exit(main())
