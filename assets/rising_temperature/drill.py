"""The known answer of the rising temperature: a fold over the readings of each sensor in the order of time.

It keeps the first and the last reading of the present rise. A reading that is not above the last one begins another
rise. A rise of a second is found, and the reading after it begins another one.
"""

from assets.drilled import drilled
from assets.rising_temperature.source import READINGS
from checks.spec import AuditedTable

DRILL = drilled(
    "rising_temperature",
    READINGS,
    AuditedTable("rises", "out", "sensor long, since timestamp, until timestamp, by double", keys=("sensor", "since")),
    answer="""
        SELECT sensor, rise.since, rise.until, rise.by
        FROM (
            SELECT sensor, explode(aggregate(
                sort_array(collect_list(struct(ts, celsius))),
                named_struct(
                    'first', cast(NULL AS struct<ts: timestamp, celsius: double>),
                    'last', cast(NULL AS struct<ts: timestamp, celsius: double>),
                    'found', cast(array() AS array<struct<since: timestamp, until: timestamp, by: double>>)
                ),
                (so_far, reading) -> CASE
                    WHEN so_far.last IS NULL OR reading.celsius <= so_far.last.celsius
                        THEN named_struct('first', reading, 'last', reading, 'found', so_far.found)
                    WHEN reading.ts - so_far.first.ts < INTERVAL '1' SECOND
                        THEN named_struct('first', so_far.first, 'last', reading, 'found', so_far.found)
                    ELSE named_struct(
                        'first', cast(NULL AS struct<ts: timestamp, celsius: double>),
                        'last', cast(NULL AS struct<ts: timestamp, celsius: double>),
                        'found', concat(so_far.found, array(named_struct(
                            'since', so_far.first.ts, 'until', reading.ts,
                            'by', reading.celsius - so_far.first.celsius
                        )))
                    )
                END,
                so_far -> so_far.found
            )) AS rise
            FROM {ledger}
            GROUP BY sensor
        )
    """,
    rate=8_000,  # conditions that look at the partial match take longer
)
