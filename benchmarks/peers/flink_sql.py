"""Flink SQL: counts and sums Parquet rows in tumbling windows.

Takes a JSON object as its argument, and prints `RESULT` and JSON.
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
configuration.set_string("state.backend.type", order["backend"])
configuration.set_string("taskmanager.memory.process.size", "4 g")
configuration.set_string("table.local-time-zone", "UTC")
environment = StreamExecutionEnvironment.get_execution_environment(configuration)
tables = StreamTableEnvironment.create(environment, EnvironmentSettings.in_streaming_mode())


def window():
    tables.execute_sql(f"""
        CREATE TABLE numbers (
            `key` BIGINT, `value` BIGINT, ts TIMESTAMP(3),
            WATERMARK FOR ts AS ts - INTERVAL '{order["bound_s"]}' SECOND
        ) WITH ('connector' = 'filesystem', 'path' = 'file://{order["rows"]}', 'format' = 'parquet')""")
    tables.execute_sql(f"""
        CREATE TABLE windows (`key` BIGINT, window_start TIMESTAMP(3), `count` BIGINT, total BIGINT)
        WITH ('connector' = 'filesystem', 'path' = 'file://{order["folder"]}/table', 'format' = 'parquet')""")
    started = time.time()
    result = tables.execute_sql(f"""
        INSERT INTO windows
        SELECT `key`, window_start, COUNT(*), SUM(`value`)
        FROM TABLE(TUMBLE(TABLE numbers, DESCRIPTOR(ts), INTERVAL '{order["window_s"]}' SECONDS))
        GROUP BY `key`, window_start, window_end""")
    client = result.get_job_client()
    done = client.get_job_execution_result().result()
    return {"seconds": done.get_net_runtime() / 1000, "with_start_s": time.time() - started}


print("RESULT" + json.dumps(window()))
