"""Data Docs that can be read without internet: Great Expectations' own pages load styles and scripts from CDNs.

This module removes everything that pages load from other hosts and adds a small style sheet. It replaces the index,
which needs those scripts, by a page with the verdict, every check, examples of wrong rows, and links to the pages of
each suite.
"""

from __future__ import annotations

import functools
import html
import http.server
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from checks.results import AuditResult, CheckResult, Verdict

HOST = "127.0.0.1"
INDEX = "index.html"

_REMOTE = re.compile(
    r"<script\b[^>]*\bsrc=\"https?://[^>]*>\s*</script>|<link\b[^>]*\bhref=\"https?://[^>]*>|<img\b[^>]*\bsrc=\"https?://[^>]*>",
    re.IGNORECASE,
)

_STYLE = r"""
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2733; max-width: 76rem; margin: 1.5rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem } a { color: #0b5cad }
table { border-collapse: collapse; margin: .6rem 0 1.2rem; width: 100%; }
th, td { border-bottom: 1px solid #d5dce3; padding: .35rem .7rem; text-align: left; vertical-align: top; }
th { color: #5b6b7b; font-weight: 600 } code, pre { font: 13px/1.4 ui-monospace, monospace; white-space: pre-wrap; }
.passed { color: #11753c } .failed { color: #b3261e } .could { color: #8a5a00 } .verdict { font-weight: 700 }
.figures { width: auto } ul { padding-left: 1.2rem }
h3 { font-size: 1rem; margin: 1.6rem 0 .2rem } p { margin: .3rem 0 }
.matrix td { padding: .2rem .7rem; white-space: nowrap }
svg text { font: 12px system-ui, sans-serif; fill: #5b6b7b } .grid { stroke: #e3e8ed } .good { fill: #11753c }
.target { stroke: #b3261e; stroke-dasharray: 5 4 } .late { fill: #b3261e } .line { fill: none; stroke: #9db2c6 }
.navbar, .btn, .modal, .cooltip, .col-lg-2, footer { display: none }
.fa-check-circle::before { content: "\2713"; color: #11753c } .fa-times::before { content: "\2717"; color: #b3261e }
.fa-exclamation-triangle::before { content: "!"; color: #8a5a00 } .fas { font-style: normal; font-weight: 700 }
"""
# Rows may hold anything, and no page needs a script: none runs, and nothing is loaded from elsewhere.
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; style-src 'unsafe-inline'; img-src data:\">"
)
_CLASSES = {Verdict.PASSED: "passed", Verdict.FAILED: "failed", Verdict.COULD_NOT_RUN: "could"}


def finish_docs(folder: Path, result: AuditResult, title: str = "") -> None:
    """`title`: what the pages are about; an audit if it is empty."""
    for page in folder.rglob("*.html"):
        text = _REMOTE.sub("", page.read_text())
        back = "../" * (len(page.relative_to(folder).parts) - 1)
        text = re.sub(r"(<head\b[^>]*>)", rf"\1{_POLICY}", text, count=1)
        text = text.replace("</head>", f"<style>{_STYLE}</style></head>", 1)
        page.write_text(
            re.sub(r"(<body\b[^>]*>)", rf'\1<p><a href="{back}index.html">the verdict</a></p>', text, count=1)
        )
    (folder / "index.html").write_text(_index(folder, result, title or f"Audit of {result.job}, epoch {result.epoch}"))


def _index(folder: Path, result: AuditResult, title: str) -> str:
    figures = "".join(f"<tr><td>{escaped(k)}</td><td>{v:,.10g}</td></tr>" for k, v in result.figures.items())
    checks = "".join(
        f"<tr><td>{escaped(c.name)}</td><td>{badge(c.verdict)}</td><td>{escaped(c.summary)}</td></tr>"
        for c in result.checks
    )
    pages = sorted(page for page in folder.rglob("validations/**/*.html"))
    links = "".join(
        f'<li><a href="{page.relative_to(folder).as_posix()}">{escaped(page.relative_to(folder).parts[1])}</a></li>'
        for page in pages
    )
    return page(
        title,
        f"""<h1>{escaped(title)}: {badge(result.verdict)}</h1>
<p>{result.evaluated} of {result.expected} expectations evaluated by Great Expectations on Spark.</p>
<table><tr><th>check</th><th>verdict</th><th></th></tr>{checks}</table>
{"".join(_examples(check) for check in result.checks)}
<h2>Figures</h2><table class="figures">{figures}</table>
<h2>Suites</h2><ul>{links}</ul>""",
    )


def page(title: str, body: str) -> str:
    """Returns a page of Weir's own with this body."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">{_POLICY}
<title>weir: {escaped(title)}</title><style>{_STYLE}</style></head>
<body>
{body}
</body></html>
"""


def _examples(check: CheckResult) -> str:
    if not check.rows:
        return ""
    columns = list(dict.fromkeys(name for row in check.rows for name in row))
    head = "".join(f"<th>{escaped(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td><code>{escaped(row.get(name, ''))}</code></td>" for name in columns) + "</tr>"
        for row in check.rows
    )
    return f"<h2>{escaped(check.name)}: {len(check.rows)} examples</h2><table><tr>{head}</tr>{body}</table>"


def badge(verdict: Verdict) -> str:
    return f'<span class="verdict {_CLASSES[verdict]}">{escaped(verdict.value)}</span>'


def escaped(value: Any) -> str:
    return html.escape(str(value))


def serve(folder: Path, port: int, page: str, ready: Callable[[str], None]) -> None:
    """Serves the pages on loopback until interrupted, and calls `ready` with the address. Port 0 is any free port.

    `page` is the one to begin with. If it is not the index, only it and folders of Data Docs are served.
    """
    handler = functools.partial(_Pages, page, directory=str(folder))
    with http.server.ThreadingHTTPServer((HOST, port), handler) as server:
        ready(f"http://{HOST}:{server.server_address[1]}/{page if page != INDEX else ''}")
        server.serve_forever()


class _Pages(http.server.SimpleHTTPRequestHandler):
    def __init__(self, page: str, *args: Any, **kwargs: Any) -> None:
        self._page = page
        super().__init__(*args, **kwargs)

    def send_head(self) -> Any:
        parts = Path(self.translate_path(self.path)).relative_to(self.directory).parts
        if self._page == INDEX or parts == (self._page,) or parts[1:2] == ("data_docs",):
            return super().send_head()
        self.send_error(404)
        return None

    def log_message(self, format: str, *args: Any) -> None:
        pass
