"""Drops events whose id came before, as long as the watermark has not forgotten it."""

import json
import os
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import timestamp_millis, unix_millis

BEGIN = 1_700_000_000
BATCHES = [
    [("a", 0), ("b", 2), ("a", 1)],
    [("a", 3), ("c", 8)],
    [("c", 9)],
    [("d", 40)],
    [("d", 41)],
    [("a", 42), ("b", 4), ("d", 45)],
]


def write(folder):
    """One file a micro-batch, in this order."""
    for number, batch in enumerate(BATCHES):
        file = Path(folder, f"{number}.json")
        file.write_text("\n".join(json.dumps({"id": id_, "at": 1000 * (BEGIN + at)}) for id_, at in batch))
        os.utime(file, (number, number))


def main():
    spark = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", 1).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        events = spark.readStream.schema("id string, at long").option("maxFilesPerTrigger", 1).json(folder)
        unique = (
            events.withColumn("at", timestamp_millis("at"))
            .withWatermark("at", "10 seconds")
            .dropDuplicatesWithinWatermark(["id"])
            .select("id", unix_millis("at").alias("at"))
        )
        query = unique.writeStream.format("memory").queryName("unique").outputMode("append")
        query.trigger(availableNow=True).start().awaitTermination()
        rows = spark.table("unique").collect()
    print(*sorted(json.dumps({"table": "unique", **row.asDict()}) for row in rows), sep="\n")


if __name__ == "__main__":
    main()
