"""Goal: `pip install weir` brings the packages that this checkout runs with, the extras only where they are needed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=!~ \[#]", line, maxsplit=1)[0] for line in requirements}


def test_the_wheel_and_the_checkout_name_the_same_packages() -> None:
    """The wheel has ranges, and extras; the checkout has pins of all of them."""
    lines = (ROOT / "requirements.in").read_text().splitlines()
    checkout = names([line for line in lines if line and not line.startswith("#")])
    extras = [name for of in PROJECT["optional-dependencies"].values() for name in of]
    assert names(PROJECT["dependencies"]) | names(extras) == checkout
    assert not names(PROJECT["dependencies"]) & names(extras)


def test_an_extra_holds_what_one_feature_needs() -> None:
    extras = {extra: names(of) for extra, of in PROJECT["optional-dependencies"].items()}
    assert extras == {
        "dagster": {"dagster", "dagster-webserver", "dagster-pyspark"},
        "audit": {"great-expectations"},
        "s3": {"minio"},
        "kafka": {"confluent-kafka", "fastavro", "protobuf"},
        "postgres": {"psycopg"},
        "delta": {"deltalake"},
        "iceberg": {"pyiceberg"},
    }
    assert "pyspark>=4.0" in PROJECT["dependencies"]
