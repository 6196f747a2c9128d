"""The audit of dependencies fails on what can be mended, and says loudly if it could not look."""

from __future__ import annotations

import sys
from typing import Any

from tests.audit import advisories, verdict


def dependency(*vulnerabilities: dict[str, Any]) -> dict[str, Any]:
    return {"name": "one", "version": "1.0", "vulns": list(vulnerabilities)}


SKIPPED = {"name": "two", "skip_reason": "Dependency not found"}


def test_a_vulnerability_that_a_newer_version_mends_fails() -> None:
    code, said = verdict([dependency({"id": "CVE-1", "fix_versions": ["1.1"]})], "")
    assert code == 1 and "one 1.0 has CVE-1, mended in 1.1: " in said


def test_a_vulnerability_that_nobody_has_mended_is_told() -> None:
    code, said = verdict([dependency({"id": "CVE-1", "fix_versions": []})], "")
    assert code == 0 and "one 1.0 has CVE-1, not mended yet" in said


def test_dependencies_about_which_nothing_is_known_are_not_called_sound() -> None:
    code, said = verdict([SKIPPED, SKIPPED], "")
    assert code == 0 and said.startswith("DEPENDENCY AUDIT SKIPPED") and "Dependency not found" in said
    code, said = verdict([dependency(), SKIPPED], "")
    assert code == 0 and said == "1 dependencies audited, 1 SKIPPED (no advisories)"


def test_a_tool_that_fails_is_a_skipped_audit() -> None:
    found, why = advisories([sys.executable, "-c", "raise SystemExit('no network')"])
    assert not found and why == "no network"
    assert verdict(found, why) == (0, "DEPENDENCY AUDIT SKIPPED: the advisories can't be had here (no network)")
