"""Counts the clicks on each page in windows of ten seconds. Clicks that come too late are dropped."""

import json
import os
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import col, timestamp_millis, unix_millis, window

BEGIN = 1_700_000_000
BATCHES = [
    [("home", 1), ("cart", 5)],
    [("home", 12), ("cart", 4)],
    [("home", 25)],
    [("home", 38)],
    [("cart", 3), ("home", 33)],
    [("cart", 45)],
    [("end", 1000)],  # Spark emits no window that the watermark has not passed, also at the end of the input,
    [("end", 1001)],  # and a watermark counts from the next batch on
]


def write(folder):
    """One file a micro-batch, in this order."""
    for number, batch in enumerate(BATCHES):
        file = Path(folder, f"{number}.json")
        file.write_text("\n".join(json.dumps({"page": page, "at": 1000 * (BEGIN + at)}) for page, at in batch))
        os.utime(file, (number, number))


def main():
    spark = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", 1).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        clicks = spark.readStream.schema("page string, at long").option("maxFilesPerTrigger", 1).json(folder)
        counts = (
            clicks.withColumn("at", timestamp_millis("at"))
            .withWatermark("at", "5 seconds")
            .groupBy("page", window("at", "10 seconds"))
            .count()
            .select("page", unix_millis("window.start").alias("start"), col("count").alias("clicks"))
        )
        query = counts.writeStream.format("memory").queryName("counts").outputMode("append")
        query.trigger(availableNow=True).start().awaitTermination()
        rows = spark.table("counts").collect()
    print(*sorted(json.dumps({"table": "counts", **row.asDict()}) for row in rows), sep="\n")


if __name__ == "__main__":
    main()
