"""Runs every port of tests/ports on Spark, one after the other in one session: `python ports_script.py STORE`.

Prints one line: the rows of each port, as its original prints them.
"""

from __future__ import annotations

import importlib
import json
import sys

from pyspark.sql import SparkSession

from engine.api import StreamEnvironment
from engine.connectors.table import TableSink, read_table
from engine.core.paths import JobPaths
from engine.protocol.scaling import AS_STARTED
from engine.store.opening import open_store
from tests.ports.pairs import NAMES


def main() -> None:
    store = sys.argv[1]
    spark = SparkSession.builder.master("local[3]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    found: dict[str, list[str]] = {}
    for name in NAMES:
        env = StreamEnvironment(spark, store=store, parallelism=2)
        importlib.import_module(f"tests.ports.weir.{name}").job(env)
        graph = env.scalable(name).at(AS_STARTED)
        tables = [sink.path for _, sink in graph.sinks if isinstance(sink, TableSink)]
        env.execute(name)
        opened, paths = open_store(store), JobPaths(name)
        rows = [{"table": of, **row} for of in tables for row in read_table(opened, paths.table(of)).to_pylist()]
        found[name] = sorted(json.dumps(row, sort_keys=True) for row in rows)
    print("RESULT" + json.dumps(found))


main()
