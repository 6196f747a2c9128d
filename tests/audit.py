"""`python -m tests.audit` looks for known vulnerabilities of the pinned dependencies, with pip-audit.

The advisories come over the network. Where they can't be had, the audit is skipped with a message and the exit code is
0. pip-audit itself passes a dependency about which it learned nothing, so this counts those too.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parents[1] / "requirements-dev.lock"
TIMEOUT_S = 10
"""For each answer of the network."""
PATIENCE_S = 90
COMMAND = ["--require-hashes", "--disable-pip", "--progress-spinner", "off", "--timeout", str(TIMEOUT_S), "-f", "json"]


def main() -> None:
    found, why = advisories([sys.executable, "-m", "pip_audit", *COMMAND, "-r", str(LOCK)])
    code, message = verdict(found, why)
    print(message)
    sys.exit(code)


def advisories(command: Sequence[str]) -> tuple[list[dict[str, Any]], str]:
    """Returns pip-audit's finding about each dependency; without one, why there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
        return json.loads(done.stdout)["dependencies"], ""
    except subprocess.TimeoutExpired:
        return [], f"no answer within {PATIENCE_S} s"
    except (OSError, ValueError, KeyError):
        return [], (done.stderr.strip().splitlines() or ["pip-audit said nothing"])[-1]


def verdict(found: Sequence[dict[str, Any]], why: str) -> tuple[int, str]:
    """Returns the exit code and what to print. Only a vulnerability that a newer version mends is a failure."""
    known = [dependency for dependency in found if "skip_reason" not in dependency]
    if not known:
        why = why or (found[0]["skip_reason"] if found else "no dependency was found")
        return 0, f"DEPENDENCY AUDIT SKIPPED: the advisories can't be had here ({why})"
    lines, code = [], 0
    for dependency in known:
        for one in dependency["vulns"]:
            mended = ", ".join(one["fix_versions"])
            code |= bool(mended)
            advice = f"mended in {mended}: delete its pin in the lock and run make lock" if mended else "not mended yet"
            lines.append(f"{dependency['name']} {dependency['version']} has {one['id']}, {advice}")
    skipped = len(found) - len(known)
    lines.append(f"{len(known)} dependencies audited" + (f", {skipped} SKIPPED (no advisories)" if skipped else ""))
    return code, "\n".join(lines)


if __name__ == "__main__":
    main()
