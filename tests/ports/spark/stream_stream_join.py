"""Joins advertisements that were shown with the clicks on them within one minute."""

import json
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.functions import expr, timestamp_millis, unix_millis

BEGIN = 1_700_000_000
SHOWN = [(1, "shoes", 0), (2, "books", 10), (3, "tea", 20), (4, "books", 100)]
CLICKS = [(1, 15), (2, 5), (1, 61), (3, 80), (2, 30), (5, 40), (4, 101)]


def write(folder, rows):
    Path(folder, "0.json").write_text("\n".join(map(json.dumps, rows)))


def main():
    spark = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", 1).getOrCreate()
    with tempfile.TemporaryDirectory() as ads, tempfile.TemporaryDirectory() as clicked:
        write(ads, [{"ad": ad, "what": what, "at": 1000 * (BEGIN + at)} for ad, what, at in SHOWN])
        write(clicked, [{"ad": ad, "at": 1000 * (BEGIN + at)} for ad, at in CLICKS])
        shown = spark.readStream.schema("ad long, what string, at long").json(ads)
        clicks = spark.readStream.schema("ad long, at long").json(clicked)
        shown = shown.withColumn("at", timestamp_millis("at")).withWatermark("at", "2 minutes")
        clicks = clicks.withColumn("at", timestamp_millis("at")).withWatermark("at", "2 minutes")
        joined = (
            shown.alias("s")
            .join(clicks.alias("c"), expr("s.ad = c.ad AND c.at BETWEEN s.at AND s.at + INTERVAL 1 MINUTE"))
            .select("s.ad", "what", unix_millis("s.at").alias("shown"), unix_millis("c.at").alias("clicked"))
        )
        query = joined.writeStream.format("memory").queryName("joined").outputMode("append")
        query.trigger(availableNow=True).start().awaitTermination()
        rows = spark.table("joined").collect()
    print(*sorted(json.dumps({"table": "joined", **row.asDict()}) for row in rows), sep="\n")


if __name__ == "__main__":
    main()
