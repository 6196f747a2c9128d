"""The queries in Flink SQL: the columns of each result, and the query."""

from __future__ import annotations

FIELDS = "id BIGINT, `key` BIGINT, `value` BIGINT, ts TIMESTAMP(3)"

TIME = "DESCRIPTOR(ts)"
_SECONDS, _MINUTES = "'10' SECOND", "'5' MINUTE"
_RESULT = "`key` BIGINT, num BIGINT, total BIGINT, window_start TIMESTAMP(3), window_end TIMESTAMP(3)"
_COLUMNS = "`key`, COUNT(*) AS num, SUM(`value`) AS total, window_start, window_end"
_GROUPED = "GROUP BY `key`, window_start, window_end"


def _tumble(table: str, size: str) -> str:
    return f"TABLE(TUMBLE(TABLE {table}, {TIME}, INTERVAL {size}))"


QUERIES = {
    "sliding": (
        _RESULT,
        f"SELECT {_COLUMNS} FROM TABLE(HOP(TABLE `left`, {TIME}, INTERVAL '5' MINUTE, INTERVAL '1' HOUR)) {_GROUPED}",
    ),
    "session": (
        _RESULT,
        f"SELECT {_COLUMNS} FROM TABLE(SESSION(TABLE `left` PARTITION BY `key`, {TIME}, INTERVAL '30' SECOND)) "
        f"{_GROUPED}",
    ),
    "window_join": (
        "id BIGINT, other BIGINT",
        f"SELECT L.id, R.id FROM (SELECT * FROM {_tumble('`left`', _SECONDS)}) AS L "
        f"JOIN (SELECT * FROM {_tumble('`right`', _SECONDS)}) AS R ON L.`key` = R.`key` "
        "AND L.window_start = R.window_start AND L.window_end = R.window_end",
    ),
    "interval_join": (
        "id BIGINT, other BIGINT",
        "SELECT L.id, R.id FROM `left` AS L JOIN `right` AS R ON L.`key` = R.`key` "
        "AND R.ts BETWEEN L.ts - INTERVAL '5' SECOND AND L.ts + INTERVAL '5' SECOND",
    ),
    "top_three": (
        "`key` BIGINT, num BIGINT, ends TIMESTAMP(3)",
        "SELECT `key`, num, window_end FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY window_start, window_end "
        f"ORDER BY num DESC, `key` DESC) AS place FROM (SELECT {_COLUMNS} FROM {_tumble('`left`', _MINUTES)} "
        f"{_GROUPED})) WHERE place <= 3",
    ),
}
