"""Goal: a person with a browser starts the page-view job, saves, rescales and upgrades it, without the internet.

Topology: real webserver, daemon and run workers; Debian's chromium, driven by playwright, which reaches loopback only.
Checks: what the pages show: plots of checkpoints, savepoints with their size, a rescale with its pause, the steps of an
upgrade with the check of its rehearsal, the schedules. With WEIR_SCREENSHOTS=FOLDER the screenshots are kept.
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

PATIENCE_S = 400
UPGRADE_S = 1200
NO_INTERNET = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
PLOTTED = ("alignment_ms", "async_ms", "duration_ms", "rows_committed", "rows_read", "state_bytes", "sync_ms")
expect.set_options(timeout=120_000)  # as long as a click may take: pages are slow while Spark starts

MINUTES = int(os.environ.get("WEIR_SCREENSHOT_MINUTES", "2"))


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
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", NO_INTERNET], timeout=120_000
        )
        opened = browser.new_page(viewport={"width": 1280, "height": 900})
        opened.set_default_timeout(120_000)
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
        return len(system.materializations("checkpoints", "pageviews")) >= MINUTES or None

    eventually(f"{MINUTES} minutes of checkpoints in Dagster", enough, 180 + 60 * MINUTES)
    page.goto(f"{system.services.url}/assets/checkpoints/pageviews")
    page.get_by_text("Plots", exact=True).click()
    for name in PLOTTED:
        expect(page.get_by_text(name, exact=True)).to_be_visible()
    expect(page.locator("canvas").first).to_be_visible()
    assert page.locator("canvas").count() >= len(PLOTTED)
    page.get_by_text("Plots", exact=True).scroll_into_view_if_needed()
    page.wait_for_timeout(1500)  # the plots are drawn with an animation
    keep(page, "checkpoints")


def test_the_lineage_goes_from_the_source_to_the_table_and_gold_has_days(system: System, page: Page) -> None:
    page.goto(f"{system.services.url}/assets/streams/pageviews?view=lineage&lineageScope=neighbors")
    for name in ("views", "pv"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()
    keep(page, "lineage")
    page.goto(f"{system.services.url}/assets/gold/pageviews")
    expect(page.get_by_text("Materialize…", exact=True).first).to_be_visible()
    keep(page, "gold")


@pytest.mark.promise("D5", "F1")
def test_savepoints_are_listed_with_size_epoch_and_duration(system: System, page: Page) -> None:
    for name in ("scheduled-20261116-020000", "scheduled-20261117-020000", "before-v2"):
        system.succeeds(
            "pageviews_savepoint", {"ops": {"savepoints__pageviews": {"config": {"name": name}}}}, PATIENCE_S
        )
    page.goto(f"{system.services.url}/assets/savepoints/pageviews?view=events")
    for name in ("savepoint", "epoch", "bytes", "duration_ms", "place"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()
    expect(page.get_by_text("before-v2", exact=True).first).to_be_visible()
    keep(page, "savepoints")


@pytest.mark.promise("F1", "H6")
def test_a_rescale_is_seen_with_its_pause_and_the_digest_of_the_state(system: System, page: Page) -> None:
    system.succeeds("pageviews_rescale", {"ops": {"rescale_pageviews": {"config": {"parallelism": 3}}}}, PATIENCE_S)
    page.goto(f"{system.services.url}/assets/streams/pageviews?view=events")
    for name in ("slots", "pause_ms", "state_digest"):
        expect(page.get_by_text(name, exact=True).first).to_be_visible()
    keep(page, "rescale")


@pytest.mark.promise("D8", "F1", "H7")
def test_an_upgrade_is_three_steps_and_its_rehearsal_is_a_green_check(system: System, page: Page) -> None:
    config = {"to": "assets.pageviews.job:job_v2", "checkpoints": 4}
    run_id = system.succeeds("pageviews_upgrade", config, UPGRADE_S)
    launch = system.client("pageviews").folder.read_launch()
    assert launch is not None and launch.path == config["to"] and system.client("pageviews").status().running
    page.goto(f"{system.services.url}/runs/{run_id}")
    for step in ("dry_run_pageviews", "rehearse_pageviews", "switch_pageviews"):
        expect(page.get_by_text(step, exact=True).first).to_be_visible()
    page.wait_for_timeout(1500)
    keep(page, "upgrade")
    page.goto(f"{system.services.url}/assets/rehearsals/pageviews?view=checks")
    expect(page.get_by_text("same_output", exact=True).first).to_be_visible()
    expect(page.get_by_text("Passed", exact=True).first).to_be_visible()
    keep(page, "rehearsal")


@pytest.mark.promise("F1")
def test_the_schedules_of_savepoints_rescales_and_the_weekly_drill_are_on(system: System, page: Page) -> None:
    page.goto(f"{system.services.url}/automation")
    for name in ("savepoints", "rescale_morning", "rescale_evening", "drills"):
        expect(page.get_by_text(f"pageviews_{name}", exact=True).first).to_be_visible()
    expect(page.get_by_text("At 03:30 AM UTC, only on Sunday").first).to_be_visible()
    keep(page, "schedules")
