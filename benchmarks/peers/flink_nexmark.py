"""Flink SQL: one query of Nexmark, on Parquet files. Takes a JSON object as its argument, prints `RESULT` and JSON.

The queries are those of the Nexmark project for Flink, with two changes for exact comparison: prices are converted with
a DOUBLE, and averages are those of DOUBLEs (AVG of BIGINTs is rounded down).
"""

import json
import sys
import time

from pyflink.common import Configuration
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.table import EnvironmentSettings, StreamTableEnvironment

TABLES = {
    "person": "id BIGINT, name STRING, email STRING, credit_card STRING, city STRING, state STRING, "
    "date_time TIMESTAMP(3), extra STRING",
    "auction": "id BIGINT, item_name STRING, description STRING, initial_bid BIGINT, reserve BIGINT, "
    "date_time TIMESTAMP(3), expires TIMESTAMP(3), seller BIGINT, category BIGINT, extra STRING",
    "bid": "auction BIGINT, bidder BIGINT, price BIGINT, channel STRING, url STRING, "
    "date_time TIMESTAMP(3), extra STRING",
}
HOP = "TABLE(HOP(TABLE bid, DESCRIPTOR(date_time), INTERVAL '2' SECOND, INTERVAL '10' SECOND))"
COUNTS = (
    f"SELECT auction, COUNT(*) AS num, window_start, window_end FROM {HOP} GROUP BY auction, window_start, window_end"
)


def tumble(table):
    return f"TABLE(TUMBLE(TABLE {table}, DESCRIPTOR(date_time), INTERVAL '10' SECOND))"


# The columns of each query's result, and the query.
QUERIES = {
    "q0": (
        "auction BIGINT, bidder BIGINT, price BIGINT, date_time TIMESTAMP(3), extra STRING",
        "SELECT auction, bidder, price, date_time, extra FROM bid",
    ),
    "q1": (
        "auction BIGINT, bidder BIGINT, price DOUBLE, date_time TIMESTAMP(3), extra STRING",
        "SELECT auction, bidder, CAST(0.908 AS DOUBLE) * price, date_time, extra FROM bid",
    ),
    "q2": ("auction BIGINT, price BIGINT", "SELECT auction, price FROM bid WHERE MOD(auction, 123) = 0"),
    "q3": (
        "name STRING, city STRING, state STRING, id BIGINT",
        "SELECT P.name, P.city, P.state, A.id FROM auction AS A INNER JOIN person AS P ON A.seller = P.id "
        "WHERE A.category = 10 AND (P.state = 'OR' OR P.state = 'ID' OR P.state = 'CA')",
    ),
    "q4": (
        "category BIGINT, average DOUBLE, auctions BIGINT",
        "SELECT Q.category, AVG(CAST(Q.final AS DOUBLE)), COUNT(*) FROM (SELECT MAX(B.price) AS final, A.category "
        "FROM auction A, bid B WHERE A.id = B.auction AND B.date_time BETWEEN A.date_time AND A.expires "
        "GROUP BY A.id, A.category) Q GROUP BY Q.category",
    ),
    "q5": (
        "auction BIGINT, num BIGINT, ends TIMESTAMP(3)",
        f"SELECT A.auction, A.num, A.window_end FROM ({COUNTS}) AS A JOIN (SELECT MAX(num) AS most, window_start, "
        f"window_end FROM ({COUNTS}) GROUP BY window_start, window_end) AS M ON A.window_start = M.window_start "
        "AND A.window_end = M.window_end AND A.num >= M.most",
    ),
    "q7": (
        "auction BIGINT, price BIGINT, bidder BIGINT, date_time TIMESTAMP(3)",
        "SELECT B.auction, B.price, B.bidder, B.date_time FROM bid B JOIN (SELECT MAX(price) AS most, window_end AS "
        f"date_time FROM {tumble('bid')} GROUP BY window_start, window_end) M ON B.price = M.most "
        "WHERE B.date_time BETWEEN M.date_time - INTERVAL '10' SECOND AND M.date_time",
    ),
    "q8": (
        "id BIGINT, name STRING, window_start TIMESTAMP(3)",
        f"SELECT P.id, P.name, P.window_start FROM (SELECT id, name, window_start, window_end FROM {tumble('person')} "
        "GROUP BY id, name, window_start, window_end) AS P JOIN (SELECT seller, window_start, window_end FROM "
        f"{tumble('auction')} GROUP BY seller, window_start, window_end) AS A ON P.id = A.seller "
        "AND P.window_start = A.window_start AND P.window_end = A.window_end",
    ),
    "q11": (
        "bidder BIGINT, window_start TIMESTAMP(3), window_end TIMESTAMP(3), bids BIGINT",
        "SELECT bidder, window_start, window_end, COUNT(*) FROM TABLE(SESSION(TABLE bid PARTITION BY bidder, "
        "DESCRIPTOR(date_time), INTERVAL '10' SECOND)) GROUP BY bidder, window_start, window_end",
    ),
}
CLOCKED = "CREATE TEMPORARY VIEW clocked AS SELECT bidder, PROCTIME() AS at FROM bid"
QUERIES["q12"] = (
    "bidder BIGINT, window_start TIMESTAMP(3), window_end TIMESTAMP(3), bids BIGINT",
    "SELECT bidder, window_start, window_end, COUNT(*) FROM TABLE(TUMBLE(TABLE clocked, DESCRIPTOR(at), "
    "INTERVAL '1' SECOND)) GROUP BY bidder, window_start, window_end",
)
UPDATING = ("q4",)
"""Their results change, which a table of files can't hold: every change is printed to the log."""

order = json.loads(sys.argv[1])
configuration = Configuration()
configuration.set_string("parallelism.default", "2")
configuration.set_string("execution.checkpointing.interval", "1 s")
configuration.set_string("execution.checkpointing.dir", f"file://{order['folder']}/checkpoints")
configuration.set_string("state.backend.type", "hashmap")
configuration.set_string("taskmanager.memory.process.size", "4 g")
configuration.set_string("table.local-time-zone", "UTC")
if order["query"] in UPDATING:  # fewer changes go out, as the Nexmark project sets it
    configuration.set_string("table.exec.mini-batch.enabled", "true")
    configuration.set_string("table.exec.mini-batch.allow-latency", "2 s")
    configuration.set_string("table.exec.mini-batch.size", "50000")
environment = StreamExecutionEnvironment.get_execution_environment(configuration)
tables = StreamTableEnvironment.create(environment, EnvironmentSettings.in_streaming_mode())


def run(query):
    columns, select = QUERIES[query]
    for table, fields in TABLES.items():
        tables.execute_sql(
            f"CREATE TABLE {table} ({fields}, WATERMARK FOR date_time AS date_time - INTERVAL '4' SECOND) WITH "
            f"('connector' = 'filesystem', 'path' = 'file://{order['events']}/{table}', 'format' = 'parquet')"
        )
    if query == "q12":
        tables.execute_sql(CLOCKED)
    to = "'connector' = 'print'"
    if query not in UPDATING:
        to = f"'connector' = 'filesystem', 'path' = 'file://{order['folder']}/table', 'format' = 'parquet'"
    tables.execute_sql(f"CREATE TABLE results ({columns}) WITH ({to})")
    started = time.time()
    result = tables.execute_sql(f"INSERT INTO results {select}")
    done = result.get_job_client().get_job_execution_result().result()
    return {"seconds": done.get_net_runtime() / 1000, "with_start_s": time.time() - started}


print("RESULT" + json.dumps(run(order["query"])))
