"""Nexmark's queries in Flink SQL.

They are those of the Nexmark project for Flink, with two changes for exact comparison: prices are converted with a
DOUBLE, and averages are those of DOUBLEs (AVG of BIGINTs is rounded down).
"""

from __future__ import annotations

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


def tumble(table: str) -> str:
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
CLOCKED = "CREATE TEMPORARY VIEW clocked AS SELECT bidder, PROCTIME() AS `at` FROM bid"
QUERIES["q12"] = (
    "bidder BIGINT, window_start TIMESTAMP(3), window_end TIMESTAMP(3), bids BIGINT",
    "SELECT bidder, window_start, window_end, COUNT(*) FROM TABLE(TUMBLE(TABLE clocked, DESCRIPTOR(`at`), "
    "INTERVAL '0.1' SECOND)) GROUP BY bidder, window_start, window_end",
)
