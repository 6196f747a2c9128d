"""Goal: a person with a browser starts the page-view job and sees its checkpoints plotted, without the internet.

Topology: real webserver, daemon and run workers; Debian's chromium, driven by playwright, which reaches loopback only.
Checks: what the pages show. With WEIR_SCREENSHOTS=FOLDER the screenshots are kept.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from playwright.sync_api import Page, expect, sync_playwright

from tests.system.harness import System, eventually

PATIENCE_S = 180
NO_INTERNET = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
PLOTTED = ("alignment_ms", "async_ms", "duration_ms", "rows_committed", "rows_read", "state_bytes", "sync_ms")
CHECKPOINTS = int(os.environ.get("WEIR_SCREENSHOT_CHECKPOINTS", "4"))


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    with System(tmp_path_factory.mktemp("browser"), "orchestration.definitions") as made:
        made.client("pageviews")
        yield made


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    chromium = shutil.which("chromium")
    assert chromium, "this test needs Debian's chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", NO_INTERNET])
        opened = browser.new_page(viewport={"width": 1440, "height": 1100})
        opened.set_default_timeout(60_000)
        try:
            yield opened
        finally:
            opened.screenshot(path=tmp_path / "last.png")  # pytest keeps it: it shows the page at a failure
            browser.close()


def keep(page: Page, name: str) -> None:
    if folder := os.environ.get("WEIR_SCREENSHOTS"):
        page.screenshot(path=Path(folder) / f"{name}.png")


@pytest.mark.promise("F1", "F3")
def test_the_stream_is_materialized_with_a_click_and_its_checkpoints_are_plotted(system: System, page: Page) -> None:
    page.goto(f"{system.services.url}/assets/streams/pageviews")
    page.get_by_text("Materialize", exact=True).click()
    run = eventually("a run", lambda: next(iter(system.instance.get_runs()), None))
    assert system.finished(run.run_id, PATIENCE_S) is dg.DagsterRunStatus.SUCCESS
    assert system.client("pageviews").status().running
    page.reload()
    expect(page.get_by_text("exactly once", exact=True)).to_be_visible()
    keep(page, "stream")

    def enough() -> bool | None:
        return len(system.materializations("checkpoints", "pageviews")) >= CHECKPOINTS or None

    eventually(f"{CHECKPOINTS} checkpoints in Dagster", enough, 60 + 10 * CHECKPOINTS)
    page.goto(f"{system.services.url}/assets/checkpoints/pageviews")
    page.get_by_text("Plots", exact=True).click()
    for name in PLOTTED:
        expect(page.get_by_text(name, exact=True)).to_be_visible()
    expect(page.locator("canvas").first).to_be_visible()
    assert page.locator("canvas").count() >= len(PLOTTED)
    page.get_by_text("Plots", exact=True).scroll_into_view_if_needed()
    page.wait_for_timeout(1500)  # the plots are drawn with an animation
    keep(page, "checkpoints")
