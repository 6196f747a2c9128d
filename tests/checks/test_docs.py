"""Pages about audits show whatever a row holds as text, and run no script."""

from __future__ import annotations

from pathlib import Path

from checks.docs import finish_docs
from checks.results import AuditResult, CheckResult, Verdict

EVIL = "<script>alert(1)</script>"


def test_a_script_as_a_key_a_name_or_a_message_is_shown_as_text(tmp_path: Path) -> None:
    page = tmp_path / "validations" / "rows" / "x.html"
    page.parent.mkdir(parents=True)
    page.write_text(f"<html><head></head><body>{EVIL}</body></html>")
    check = CheckResult(EVIL, Verdict.FAILED, summary=EVIL, rows=[{EVIL: EVIL, "key": f'"{EVIL}'}])
    finish_docs(tmp_path, AuditResult(job=EVIL, epoch=1, figures={EVIL: 1.0}, checks=[check], evaluated=1, expected=1))
    index = (tmp_path / "index.html").read_text()
    assert EVIL not in index and "&lt;script&gt;alert(1)&lt;/script&gt;" in index
    for text in (index, page.read_text()):
        policy = text.index("content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\"")
        assert policy < text.index("<body"), "a page of Great Expectations may hold what it likes, and runs nothing"
