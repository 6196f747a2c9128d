"""Java is found where users have it, and brought along where they have none."""

import subprocess
import sys
from pathlib import Path

import pytest

from engine.core.errors import JavaNotFound
from engine.spark.java import JavaHome, find_java, prepare_environment


def fake_java(home: Path, version: str, *, has_vector_module: bool = True) -> Path:
    """A JAVA_HOME whose `bin/java` answers as the launcher of that version does."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    refusal = "" if has_vector_module else 'case "$*" in *jdk.incubator.vector*) exit 1;; esac\n'
    specification = version if version.startswith("1.") else version.split(".")[0]
    java.write_text(
        f"#!/bin/sh\n{refusal}cat >&2 <<END\nProperty settings:\n    java.home = {home}\n"
        f"    java.specification.version = {specification}\n    java.version = {version}\nEND\n"
    )
    java.chmod(0o755)
    return home


def test_java_home_comes_before_path_and_path_before_the_usual_folders(tmp_path: Path) -> None:
    home, path, folder = (fake_java(tmp_path / name, "17.0.1") for name in ("home", "path", "jvm/folder"))
    environ = {"JAVA_HOME": str(home), "PATH": str(path / "bin")}
    folders = [str(tmp_path / "jvm" / "*")]

    assert find_java(environ, folders).path == home
    assert find_java({"PATH": environ["PATH"]}, folders).path == path
    assert find_java({"PATH": ""}, folders).path == folder


def test_a_java_on_path_that_is_a_link_gives_the_folder_it_lives_in(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "21.0.2")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")

    assert find_java({"PATH": str(tmp_path / "bin")}, ()) == JavaHome(home, 21, "21.0.2", bundled=False)


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21"])
def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, version: str) -> None:
    old = fake_java(tmp_path / "old", version)
    new = fake_java(tmp_path / "jvm" / "new", "17.0.9")

    assert find_java({"JAVA_HOME": str(old), "PATH": ""}, [str(tmp_path / "jvm" / "*")]).path == new


def test_a_java_without_the_module_that_spark_asks_for_is_passed_over(tmp_path: Path) -> None:
    cut_down = fake_java(tmp_path / "cut-down", "25", has_vector_module=False)
    whole = fake_java(tmp_path / "jvm" / "whole", "25")

    assert find_java({"JAVA_HOME": str(cut_down), "PATH": ""}, [str(tmp_path / "jvm" / "*")]).path == whole


def test_of_several_in_the_usual_folders_the_oldest_that_will_do_is_taken(tmp_path: Path) -> None:
    for version in ("25.0.1", "11.0.1", "17.0.1", "21.0.1"):
        fake_java(tmp_path / version, version)

    assert find_java({"PATH": ""}, [str(tmp_path / "*")]).major == 17


def test_a_broken_java_home_is_passed_over(tmp_path: Path) -> None:
    whole = fake_java(tmp_path / "jvm" / "whole", "17.0.9")

    assert find_java({"JAVA_HOME": "/nowhere", "PATH": ""}, [str(tmp_path / "jvm" / "*")]).path == whole


def test_without_any_java_the_bundled_one_serves(no_java: dict[str, str]) -> None:
    java = find_java(no_java, ())

    assert java.bundled
    assert java.path.is_relative_to(no_java["XDG_CACHE_HOME"])


def test_a_child_process_keeps_the_bundled_java_that_its_parent_chose(no_java: dict[str, str]) -> None:
    java = find_java(no_java, ())

    assert find_java({**no_java, "JAVA_HOME": str(java.path)}, ()) == java


def test_the_bundled_java_keeps_every_argument_but_the_module(no_java: dict[str, str]) -> None:
    java = str(find_java(no_java, ()).path / "bin" / "java")
    command = [java, "--add-modules=jdk.incubator.vector", "-Dtold=two words", "-XshowSettings:properties", "-version"]

    answer = subprocess.run(command, capture_output=True, text=True, check=True).stderr

    assert "told = two words\n" in answer


def test_a_cache_that_cannot_be_written_is_reported_with_advice(no_java: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(JavaNotFound, match="XDG_CACHE_HOME"):
        find_java({**no_java, "XDG_CACHE_HOME": str(tmp_path / "file")}, ())


def test_workers_are_told_to_run_this_very_python(tmp_path: Path) -> None:
    assert prepare_environment(JavaHome(tmp_path, 17, "17", bundled=False)) == {
        "JAVA_HOME": str(tmp_path),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
