"""Prints which tests show which promise of docs/promises.md: `make promises`.

A test carries the ids as a marker, `@pytest.mark.promise("D4")`. A promise that no test carries is not kept yet and
is printed with "—".
"""

import contextlib
import io
import re
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

PROMISES = Path(__file__).resolve().parents[1] / "docs" / "promises.md"


class PromiseCollector:
    """Collects, as a pytest plugin, the node ids of the tests that carry each promise id."""

    def __init__(self) -> None:
        self.tests: dict[str, list[str]] = defaultdict(list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            name = item.nodeid.split("[")[0]  # the cases of a parametrised test are one line
            for promise in dict.fromkeys(str(arg) for mark in item.iter_markers("promise") for arg in mark.args):
                if name not in self.tests[promise]:
                    self.tests[promise].append(name)


def listed_promises(text: str) -> list[str]:
    """Returns the ids that docs/promises.md lists, in its order."""
    return re.findall(r"^- ([A-Z]\d+) ", text, re.MULTILINE)


def table(listed: Sequence[str], tests: Mapping[str, Sequence[str]]) -> str:
    """Returns one block per id: first the listed ids, then those that only tests name."""
    unknown = sorted(set(tests) - set(listed))
    width = max((len(promise) for promise in [*listed, *unknown]), default=0)
    lines = []
    for promise in [*listed, *unknown]:
        for label, test in zip([promise, *[""] * len(tests.get(promise, ()))], tests.get(promise, ["—"]), strict=False):
            lines.append(f"{label:<{width}}  {test}")
    kept = sum(1 for promise in listed if tests.get(promise))
    lines.append(f"\n{kept} of {len(listed)} promises have a test.")
    if unknown:
        lines.append(f"Not in docs/promises.md: {', '.join(unknown)}")
    return "\n".join(lines)


def main() -> int:
    collector = PromiseCollector()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = pytest.main(["--collect-only", "-q", "-p", "no:cacheprovider", "tests"], plugins=[collector])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        print(output.getvalue(), file=sys.stderr)
        return int(code)
    print(table(listed_promises(PROMISES.read_text()), collector.tests))
    return 0


if __name__ == "__main__":
    sys.exit(main())
