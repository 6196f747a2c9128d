"""Counts the events of each user's session with a state of its own. A session ends after 30 seconds without events."""

import json
import os
import tempfile
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, timestamp_millis
from pyspark.sql.streaming.state import GroupStateTimeout

BEGIN = 1_700_000_000
BATCHES = [
    [("ann", 0), ("bob", 5)],
    [("ann", 20)],
    [("ann", 41), ("bob", 31)],
    [("cid", 110)],
    [("cid", 130)],
    [("ann", 140), ("bob", 139)],
    [("end", 1000)],  # Spark calls no time-out that the watermark has not passed, also at the end of the input,
    [("end", 1001)],  # and a watermark counts from the next batch on
]


def session(key, frames, state):
    (user,) = key
    if state.hasTimedOut:
        n, last = state.get
        state.remove()
        yield pd.DataFrame({"user": [user], "n": [n], "end": [last + 30_000]})
    else:
        n, last = state.get if state.exists else (0, 0)
        for frame in frames:
            n += len(frame)
            last = max(last, int(frame["ms"].max()))
        state.update((n, last))
        state.setTimeoutTimestamp(last + 30_000)


def write(folder):
    """One file a micro-batch, in this order."""
    for number, batch in enumerate(BATCHES):
        file = Path(folder, f"{number}.json")
        file.write_text("\n".join(json.dumps({"user": user, "ms": 1000 * (BEGIN + at)}) for user, at in batch))
        os.utime(file, (number, number))


def main():
    spark = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", 1).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        events = spark.readStream.schema("user string, ms long").option("maxFilesPerTrigger", 1).json(folder)
        sessions = (
            events.withColumn("at", timestamp_millis("ms"))
            .withWatermark("at", "10 seconds")
            .groupBy("user")
            .applyInPandasWithState(
                session,
                outputStructType="user string, n long, end long",
                stateStructType="n long, last long",
                outputMode="append",
                timeoutConf=GroupStateTimeout.EventTimeTimeout,
            )
            .where(col("user") != "end")
        )
        query = sessions.writeStream.format("memory").queryName("sessions").outputMode("append")
        query.trigger(availableNow=True).start().awaitTermination()
        rows = spark.table("sessions").collect()
    print(*sorted(json.dumps({"table": "sessions", **row.asDict()}) for row in rows), sep="\n")


if __name__ == "__main__":
    main()
