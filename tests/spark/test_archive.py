"""The archive of Spark's classes: found by Java and Spark, trusted only if private, made once and in the background."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from engine.spark import archive
from engine.spark.java import JavaHome
from engine.spark.session import settings_of

JAVA = JavaHome(Path("/usr/lib/jvm/java-17"), 17, "17.0.9", bundled=False)


@pytest.fixture
def there(tmp_path: Path) -> dict[str, str]:
    """Returns an environment whose cache folder holds an archive."""
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    file = archive.archive_of(JAVA, environ)
    file.parent.mkdir(mode=0o700, parents=True)
    file.write_bytes(b"classes")
    file.chmod(0o600)
    return environ


def test_each_java_has_an_archive_of_its_own(there: dict[str, str]) -> None:
    other = JavaHome(JAVA.path, 17, "17.0.10", bundled=False)
    assert archive.archive_of(JAVA, there) == archive.archive_of(JAVA, there) != archive.archive_of(other, there)
    assert archive.options(other, there) == ""
    used = archive.options(JAVA, there)
    assert used.startswith(f"-XX:SharedArchiveFile={archive.archive_of(JAVA, there)} ")
    assert "-XX:+VerifySharedSpaces" in used and "-Xshare:auto" in used


@pytest.mark.parametrize("what", ["file", "folder"])
def test_an_archive_that_others_can_write_is_not_used(there: dict[str, str], what: str) -> None:
    file = archive.archive_of(JAVA, there)
    (file if what == "file" else file.parent).chmod(0o722)
    assert archive.options(JAVA, there) == ""


def test_a_job_starts_with_the_archive_and_the_author_s_own_options_come_first(tmp_path: Path) -> None:
    name = "spark.driver.extraJavaOptions"
    mine = settings_of(2, 2, spark_master="", conf={}, scratch=tmp_path, queries=False, java_options="-XX:X")
    assert mine.in_file[name].split() == ["-XX:+ExitOnOutOfMemoryError", "-XX:TieredStopAtLevel=1", "-XX:X"]
    given = settings_of(2, 2, spark_master="", conf={name: "-Dmine=1"}, scratch=tmp_path, java_options="-XX:X")
    assert given.in_file[name] == "-Dmine=1"


def test_it_is_made_once_and_not_tried_again_by_a_java_that_can_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    file = archive.archive_of(JAVA, environ)
    drafts: list[Path] = []

    def write(draft: Path) -> None:
        drafts.append(draft)
        draft.write_bytes(b"classes")

    def fail(draft: Path) -> None:
        draft.write_bytes(b"half")
        raise OSError("no space left")

    def unable(draft: Path) -> None:
        raise archive._Unable("this Java writes no archive")

    monkeypatch.setattr(archive, "_start_and_end", write)
    file.parent.mkdir(parents=True)
    stale, gone, recent = (file.parent / name for name in (f"{file.stem}.123", "spark-0a.jsa", "spark-0b.jsa"))
    for other in (stale, gone, recent):
        other.write_bytes(b"classes")
    long_ago = time.time() - 40 * 24 * 3600
    os.utime(gone, (long_ago, long_ago))
    assert archive.make(JAVA, environ) == archive.make(JAVA, environ) == file
    assert len(drafts) == 1 and file.read_bytes() == b"classes"
    assert {path.name for path in file.parent.glob("spark-*")} == {file.name, f"{file.stem}.lock", recent.name}

    file.unlink()
    monkeypatch.setattr(archive, "_start_and_end", fail)
    assert archive.make(JAVA, environ) is None and not list(file.parent.glob(f"{file.stem}.{os.getpid()}"))
    monkeypatch.setattr(archive, "_start_and_end", unable)
    assert archive.make(JAVA, environ) is None, "it was tried again: a full disk may have been cleared"
    monkeypatch.setattr(archive, "_start_and_end", write)
    assert archive.make(JAVA, environ) is None and len(drafts) == 1
    assert file.with_suffix(".failed").read_text() == "this Java writes no archive\n"


def test_a_job_that_runs_for_a_minute_has_it_made_and_one_that_ends_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, started = [0.0], []

    class Process:
        pid, code = 4_194_305, None  # no such process

        def __init__(self, command: list[str], **_: object) -> None:
            started.append(command[1:])

        def poll(self) -> int | None:
            return self.code

        def wait(self) -> None:
            Process.code = -9

    monkeypatch.setattr(archive.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(archive.subprocess, "Popen", Process)
    maker = archive.ArchiveMaker()
    for seconds, running in ((0, True), (59, True), (60, False), (61, True), (120, True)):
        clock[0] = seconds
        maker.poll(running)
    assert not started, "the minute began again when the job was restarted"
    clock[0] = 121
    maker.poll(running=True)
    maker.poll(running=True)
    assert started == [["-m", "engine.spark.archive"]]
    maker.end()
    assert Process.code == -9
    clock[0] = 999
    maker.poll(running=True)
    assert len(started) == 1
