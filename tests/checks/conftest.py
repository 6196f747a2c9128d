"""Gives all audits of these tests one Spark session, and all seals one key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from checks.seal import KEY
from checks.spark import reading_session
from tests.checks import small

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session", autouse=True)
def audit_key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(KEY, "the key of the tests")
        yield


@pytest.fixture(scope="session")
def made(audit_key: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small drill without faults. Nobody changes it."""
    folder = tmp_path_factory.mktemp("made") / "drill"
    small.build(folder)
    return folder


@pytest.fixture
def drill(made: Path, tmp_path: Path) -> Path:
    """A small drill of this test's own."""
    return small.copied(made, tmp_path / "drill")


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = reading_session("weir tests")
    yield session
    session.stop()
