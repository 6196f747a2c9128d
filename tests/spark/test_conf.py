"""Secrets reach Spark by name and through a file that only its owner can read."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from engine.core.errors import WeirError
from engine.spark.conf import literal_secrets, resolved, write_properties
from engine.spark.scratch import private_scratch
from engine.spark.session import settings_of

SECRET = "spark.hadoop.fs.s3a.secret.key"


def test_a_value_that_names_a_variable_is_its_content() -> None:
    conf = {SECRET: "env:S3_KEY", "spark.executor.memory": "2g"}
    assert resolved(conf, {"S3_KEY": "hush"}) == {SECRET: "hush", "spark.executor.memory": "2g"}


def test_a_variable_that_is_not_set_is_named() -> None:
    with pytest.raises(WeirError, match=f"--conf {SECRET}=env:S3_KEY: .*S3_KEY is not set"):
        resolved({SECRET: "env:S3_KEY"}, {})


def test_a_secret_that_is_written_out_is_noticed() -> None:
    named = {SECRET: "env:S3_KEY", "spark.ssl.keyPassword": "env:PASSWORD", "spark.executor.memory": "2g"}
    assert literal_secrets(named) == []
    written = {SECRET: "hush", "spark.ssl.keyPassword": "x", "spark.some.Token": "y", "spark.executor.memory": "2g"}
    assert literal_secrets(written) == [SECRET, "spark.ssl.keyPassword", "spark.some.Token"]


def test_the_file_of_properties_is_its_owner_s_and_java_reads_it_back(tmp_path: Path) -> None:
    os.umask(os.umask(0))
    write_properties(tmp_path / "p", {"spark.a": " x\\y=z:#!\n\tä€𝄞", "spark.b=:": "1"})
    assert stat.S_IMODE((tmp_path / "p").stat().st_mode) == 0o600
    text = (tmp_path / "p").read_bytes().decode("ascii")
    assert text == "spark.a=\\u0020x\\\\y=z:#!\\n\\t\\u00e4\\u20ac\\ud834\\udd1e\nspark.b\\=\\:=1\n"


def test_what_a_user_configures_and_spark_s_own_secret_go_into_the_file_only(tmp_path: Path) -> None:
    conf = {SECRET: "hush", "spark.executor.memory": "2g"}
    settings = settings_of(2, 2, spark_master="", conf=conf, scratch=tmp_path)
    assert settings.in_file.items() >= conf.items() and "spark.authenticate.secret" in settings.in_file
    assert not settings.in_file.keys() & settings.in_arguments.keys()
    assert "hush" not in str(settings.in_arguments) and "secret" not in str(settings.in_arguments)


def test_spark_s_ui_is_off_unless_asked_for_and_never_has_kill_links(tmp_path: Path) -> None:
    def of(conf: dict[str, str]) -> dict[str, str]:
        settings = settings_of(2, 2, spark_master="", conf=conf, scratch=tmp_path)
        return {**settings.in_file, **settings.in_arguments}

    assert of({})["spark.ui.enabled"] == "false"
    asked = of({"spark.ui.enabled": "true"})
    assert asked["spark.ui.enabled"] == "true" and asked["spark.ui.killEnabled"] == "false"
    with pytest.raises(WeirError, match=r"spark\.ui\.killEnabled=true would break slots"):
        of({"spark.ui.killEnabled": "true"})


def test_spark_hides_the_values_that_came_from_variables_whatever_their_names(tmp_path: Path) -> None:
    conf = {"spark.my.code": "env:CODE", "spark.other": "1"}
    settings = settings_of(2, 2, spark_master="", conf=conf, environ={"CODE": "1234"}, scratch=tmp_path)
    assert settings.in_file["spark.my.code"] == "1234"
    assert settings.in_file["spark.redaction.regex"].endswith(r"|spark\.my\.code")


def test_workers_of_a_local_spark_are_reached_through_a_folder_of_its_owner_only() -> None:
    settings = settings_of(2, 2, spark_master="", conf={}, scratch=Path("/tmp/s"))
    assert settings.in_arguments["spark.python.unix.domain.socket.enabled"] == "true"
    assert settings.in_arguments["spark.python.unix.domain.socket.dir"] == "/tmp/s"
    assert settings.in_arguments["spark.local.dir"] == "/tmp/s"
    long = settings_of(2, 2, spark_master="", conf={}, scratch=Path("/" + "s" * 100))
    assert "spark.python.unix.domain.socket.dir" not in long.in_arguments, "a socket's path has room for 104 bytes"


def test_scratch_is_private_and_left_behind_by_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    abandoned, unknown = tmp_path / "weir-scratch-a", tmp_path / "weir-scratch-b"
    for folder in (abandoned, unknown):
        folder.mkdir()
    (abandoned / "lock").touch()
    with private_scratch() as first, private_scratch() as second:
        assert stat.S_IMODE(first.stat().st_mode) == 0o700 and first.parent == tmp_path
        assert not abandoned.exists() and unknown.exists()
        assert first.exists() and second != first, "a folder in use is left alone"
    assert list(tmp_path.iterdir()) == [unknown]


def test_the_scratch_of_a_killed_process_is_deleted_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = "import os; from engine.spark.scratch import *\nwith private_scratch(): os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)})
    (left,) = tmp_path.iterdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with private_scratch():
        assert not left.exists()


def test_a_scratch_folder_of_somebody_else_blocks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    trap = tmp_path / "weir-scratch-x"
    trap.mkdir()
    os.mkfifo(trap / "lock")
    with private_scratch():  # a pipe without a writer blocks whoever opens it for reading
        assert trap.exists()
