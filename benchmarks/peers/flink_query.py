"""Flink SQL: one query on Parquet files. Takes a JSON object as its argument, prints `RESULT` and JSON.

`tables` has by name the folder and the columns of each input, `time` the column of event time, `columns` and `select`
are the result, `views` are made first. The results of an `updating` query change, which a table of files can't hold:
every change is printed to the log.
"""

import json
import sys
import time

from pyflink.common import Configuration
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.table import EnvironmentSettings, StreamTableEnvironment

order = json.loads(sys.argv[1])
configuration = Configuration()
configuration.set_string("parallelism.default", "2")
configuration.set_string("execution.checkpointing.interval", "1 s")
configuration.set_string("execution.checkpointing.dir", f"file://{order['folder']}/checkpoints")
configuration.set_string("state.backend.type", "hashmap")
configuration.set_string("taskmanager.memory.process.size", "4 g")
configuration.set_string("table.local-time-zone", "UTC")
if order["updating"]:  # fewer changes go out, as the Nexmark project sets it
    configuration.set_string("table.exec.mini-batch.enabled", "true")
    configuration.set_string("table.exec.mini-batch.allow-latency", "2 s")
    configuration.set_string("table.exec.mini-batch.size", "50000")
environment = StreamExecutionEnvironment.get_execution_environment(configuration)
tables = StreamTableEnvironment.create(environment, EnvironmentSettings.in_streaming_mode())


def run():
    for name, (folder, fields) in order["tables"].items():
        tables.execute_sql(
            f"CREATE TABLE {name} ({fields}, WATERMARK FOR {order['time']} AS {order['time']} - INTERVAL '4' SECOND) "
            f"WITH ('connector' = 'filesystem', 'path' = 'file://{folder}', 'format' = 'parquet')"
        )
    for view in order["views"]:
        tables.execute_sql(view)
    to = "'connector' = 'print'"
    if not order["updating"]:
        to = f"'connector' = 'filesystem', 'path' = 'file://{order['folder']}/table', 'format' = 'parquet'"
    tables.execute_sql(f"CREATE TABLE results ({order['columns']}) WITH ({to})")
    started = time.time()
    result = tables.execute_sql(f"INSERT INTO results {order['select']}")
    done = result.get_job_client().get_job_execution_result().result()
    return {"seconds": done.get_net_runtime() / 1000, "with_start_s": time.time() - started}


print("RESULT" + json.dumps(run()))
