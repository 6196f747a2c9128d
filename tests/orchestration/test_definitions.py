"""Goal: Dagster has exactly these definitions of Weir, and loading them imports nothing heavy."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.freshness import TimeWindowFreshnessPolicy

from assets.pageviews.asset import STREAM as PAGEVIEWS
from orchestration.definitions import SPECS, defs
from orchestration.spec import GoldSpec, RescaleAt, StreamSpec
from tests.orchestration.jobs import NUMBERS, definitions

ROOT = Path(__file__).parents[2]


def test_the_assets_checks_jobs_schedules_and_sensors_of_the_page_views_are_these(tmp_path: Path) -> None:
    """The page views have all that a spec can ask for."""
    repository = definitions(tmp_path, PAGEVIEWS).get_repository_def()
    graph = repository.asset_graph
    assert {key.to_user_string(): graph.get(key).is_executable for key in graph.get_all_asset_keys()} == {
        "streams/pageviews": True,
        "checkpoints/pageviews": False,
        "savepoints/pageviews": True,
        "sources/pageviews/views": False,
        "tables/pageviews/pv": False,
        "restarts/pageviews": False,
        "rehearsals/pageviews": False,
        "drills/pageviews": True,
        "audits/pageviews": True,
        "gold/pageviews": True,
    }
    assert {(key.asset_key.to_user_string(), key.name) for key in graph.asset_check_keys} == {
        ("streams/pageviews", "healthy"),
        ("streams/pageviews", "drilled"),
        ("rehearsals/pageviews", "same_output"),
        ("drills/pageviews", "reader_saw_whole_epochs"),
        ("drills/pageviews", "no_lost_duplicate_phantom_rows"),
        ("drills/pageviews", "aggregates_equal_recomputation"),
        ("drills/pageviews", "keys_not_null"),
        ("drills/pageviews", "epochs_whole"),
        ("drills/pageviews", "schema_as_declared"),
        ("drills/pageviews", "ledger_equations"),
        ("drills/pageviews", "evidence_intact"),
        ("drills/pageviews", "fault_happened"),
        ("drills/pageviews", "no_stray_files"),
        ("audits/pageviews", "files_whole"),
        ("audits/pageviews", "epochs_as_counted"),
        ("audits/pageviews", "schema_as_declared"),
        ("audits/pageviews", "spark_reads_the_same"),
        ("audits/pageviews", "ledger_unchanged"),
    }
    assert {job.name for job in repository.get_all_jobs()} - {"__ASSET_JOB"} == {
        "pageviews_start",
        "pageviews_cancel",
        "pageviews_stop",
        "pageviews_checkpoint",
        "pageviews_savepoint",
        "pageviews_delete_savepoint",
        "pageviews_gc",
        "pageviews_rescale",
        "pageviews_upgrade",
        "pageviews_drill",
        "pageviews_audit",
        "pageviews_gold",
    }
    assert {(s.name, s.cron_schedule, s.default_status.value) for s in repository.schedule_defs} == {
        ("pageviews_checkpoints", "0 * * * *", "RUNNING"),
        ("pageviews_savepoints", "0 2 * * *", "RUNNING"),
        ("pageviews_rescale_morning", "0 7 * * *", "RUNNING"),
        ("pageviews_rescale_evening", "0 20 * * *", "RUNNING"),
        ("pageviews_drills", "30 3 * * 0", "RUNNING"),
        ("pageviews_audits", "15 * * * *", "RUNNING"),
    }
    assert {(s.name, s.minimum_interval_seconds, s.default_status.value) for s in repository.sensor_defs} == {
        ("pageviews_watch", 5, "RUNNING"),
        ("pageviews_alerts", 30, "RUNNING"),
        ("pageviews_autoscale", 30, "STOPPED"),
        ("pageviews_gold_again", 60, "RUNNING"),
    }


def test_the_jobs_of_the_seeds_are_there_and_each_has_its_own_assets() -> None:
    assert [spec.job for spec in SPECS] == [
        "card_fraud",
        "even_odd_sums",
        "even_zeros",
        "failed_logins",
        "hot_items",
        "order_brushing",
        "pageviews",
        "rising_temperature",
        "unique_visitors",
        "unpaid_orders",
    ]
    repository = defs.get_repository_def()
    keys = {key.to_user_string() for key in repository.asset_graph.get_all_asset_keys()}
    kinds = ("streams", "checkpoints", "savepoints", "restarts", "rehearsals", "drills")
    of_the_graph = {key for key in keys if key.startswith(("sources/", "tables/"))}
    of_each = {f"{kind}/{spec.job}" for kind in kinds for spec in SPECS}
    assert keys - of_the_graph == of_each | {"gold/pageviews", "audits/pageviews"}
    assert {key for key in of_the_graph if key.startswith("tables/")} == {
        "tables/card_fraud/frauds",
        "tables/even_odd_sums/sums",
        "tables/even_zeros/texts",
        "tables/failed_logins/alerts",
        "tables/hot_items/hottest",
        "tables/order_brushing/brushing",
        "tables/pageviews/pv",
        "tables/rising_temperature/rises",
        "tables/unique_visitors/visitors",
        "tables/unpaid_orders/unpaid",
    }
    sensors = {sensor.name for sensor in repository.sensor_defs}
    each = {f"{spec.job}_{kind}" for spec in SPECS for kind in ("watch", "alerts")}
    assert sensors == each | {"pageviews_autoscale", "pageviews_gold_again"}
    jobs = {job.name for job in repository.get_all_jobs()}
    assert jobs >= {f"{spec.job}_{action}" for spec in SPECS for action in ("start", "cancel", "drill", "upgrade")}


def test_the_first_start_of_the_ui_runs_one_job() -> None:
    """Ten jobs at once would be too many for a small machine."""
    assert [spec.job for spec in SPECS if spec.on_first_start] == ["pageviews"]


def test_only_the_page_views_have_schedules() -> None:
    assert all(schedule.name.startswith("pageviews_") for schedule in defs.get_repository_def().schedule_defs)


def test_every_asset_has_an_owner_a_description_a_group_and_its_job_as_a_tag() -> None:
    graph = defs.get_repository_def().asset_graph
    owners = {spec.job: list(spec.owners) for spec in SPECS}
    for key in graph.get_all_asset_keys():
        node, (kind, job, *_) = graph.get(key), key.path
        assert node.owners == owners[job] and node.description, key
        assert node.group_name == kind and node.tags["weir/job"] == job, key


def test_what_depends_on_what() -> None:
    graph = defs.get_repository_def().asset_graph
    parents = {
        key.to_user_string(): {parent.to_user_string() for parent in graph.get(key).parent_keys}
        for key in graph.get_all_asset_keys()
    }
    for made in ("checkpoints", "savepoints", "rehearsals", "restarts", "drills", "tables"):
        assert parents[f"{made}/pageviews" + ("/pv" if made == "tables" else "")] == {"streams/pageviews"}, made
    assert parents["gold/pageviews"] == {"tables/pageviews/pv"}
    assert parents["streams/pageviews"] == {"sources/pageviews/views"}
    assert parents["streams/unpaid_orders"] and parents["streams/card_fraud"]


def test_checkpoints_and_tables_are_stale_after_a_time_that_the_spec_says(tmp_path: Path) -> None:
    spec = dataclasses.replace(PAGEVIEWS, checkpoints_within_s=120, rows_within_s=240)
    graph = definitions(tmp_path, spec).get_repository_def().asset_graph
    within = {
        key.to_user_string(): policy.fail_window.to_timedelta().total_seconds()
        for key in graph.get_all_asset_keys()
        if isinstance(policy := graph.get(key).freshness_policy_or_from_metadata, TimeWindowFreshnessPolicy)
    }
    assert within == {"checkpoints/pageviews": 120, "tables/pageviews/pv": 240}
    with pytest.raises(ValueError, match="hears of a job once a minute"):
        dataclasses.replace(PAGEVIEWS, rows_within_s=5)


def test_a_job_that_can_t_be_built_keeps_its_stream_which_says_why(tmp_path: Path) -> None:
    spec = dataclasses.replace(NUMBERS, params={"no such": "parameter"})
    graph = definitions(tmp_path, spec).get_repository_def().asset_graph
    assert "has no parameter no such" in str(graph.get(spec.stream_key).metadata["lineage"])
    assert not [key for key in graph.get_all_asset_keys() if key.path[0] in ("tables", "sources")]


def test_gold_is_made_again_by_day_of_event_time_when_its_table_has_rows() -> None:
    graph = defs.get_repository_def().asset_graph
    gold, table = graph.get(PAGEVIEWS.gold_key), graph.get(PAGEVIEWS.table_key("pv"))
    assert (
        gold.partitions_def == table.partitions_def == dg.DynamicPartitionsDefinition(name="weir_pageviews_event_days")
    )
    assert gold.automation_condition is not None
    assert gold.automation_condition.get_label() == "new rows, at */15 * * * *"


def test_actions_of_one_job_share_a_pool_and_drills_have_another() -> None:
    repository = defs.get_repository_def()
    pools = {
        job.name: {node.definition.pool for node in job.graph.nodes if isinstance(node.definition, dg.OpDefinition)}
        for job in repository.get_all_jobs()
    }
    for action in ("cancel", "stop", "checkpoint", "savepoint", "delete_savepoint", "rescale"):
        assert pools[f"pageviews_{action}"] == {"weir_pageviews"}, action
    upgrade = {"weir_pageviews", "weir_drills", None}
    assert pools["pageviews_upgrade"] == upgrade, "checkpoints and savepoints go on beside dry run and rehearsal"
    assert "weir_pageviews" in pools["pageviews_start"] and pools["pageviews_drill"] == {"weir_drills"}


def test_the_instance_has_pools_of_one_monitoring_and_no_telemetry(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text((ROOT / "dagster.yaml").read_text())
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        concurrency = instance.get_concurrency_config()
        assert concurrency.pool_config.default_pool_limit == 1
        assert concurrency.pool_config.pool_granularity.value == "op"
        assert instance.run_monitoring_enabled and not instance.telemetry_enabled and not instance.nux_enabled
        assert instance.run_monitoring_settings["free_slots_after_run_end_seconds"] == 5


def test_the_workspace_names_the_module_that_exists() -> None:
    (location,) = yaml.safe_load((ROOT / "workspace.yaml").read_text())["load_from"]
    assert location["python_module"]["module_name"] == "orchestration.definitions"
    assert location["python_module"]["location_name"] == "weir"


def test_loading_the_definitions_imports_no_great_expectations() -> None:
    """Importing it takes seconds, and ends a run worker silently if it is done the wrong way."""
    code = (
        "import sys, orchestration.definitions;"
        "print([name for name in ('great_expectations', 'checks._gx', 'pyspark.sql.connect') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_a_spec_that_dagster_could_not_name_is_refused() -> None:
    with pytest.raises(ValueError, match="letters, digits and _ only"):
        StreamSpec(job="page views", path="a:b", description="", owners=())
    with pytest.raises(ValueError, match="no drill"):
        StreamSpec(job="a", path="a:b", description="", owners=(), drill_cron="0 0 * * *")
    with pytest.raises(ValueError, match=r"\{table\}"):
        GoldSpec("pv", "SELECT 1", event_time="window_start")
    with pytest.raises(ValueError, match="savepoints_kept must be 1 or more"):
        StreamSpec(job="a", path="a:b", description="", owners=(), savepoints_kept=0)
    with pytest.raises(ValueError, match="'up' needs a name of its own"):
        twice = (RescaleAt("up", "0 7 * * *", 2), RescaleAt("up", "0 9 * * *", 3))
        StreamSpec(job="a", path="a:b", description="", owners=(), rescale=twice)


@pytest.mark.promise("F1")
def test_a_stream_with_a_standby_is_started_with_one() -> None:
    spec = StreamSpec(job="a", path="a:b", description="", owners=(), standby=True)
    assert spec.options.standby and not StreamSpec(job="a", path="a:b", description="", owners=()).options.standby
