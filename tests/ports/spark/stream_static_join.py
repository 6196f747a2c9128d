"""Adds to each order who sells its product, from a table that does not change. An order of an unknown product stays."""

import json
import os
import tempfile
from pathlib import Path

from pyspark.sql import SparkSession

SELLERS = [("apple", "Ann"), ("apple", "Bob"), ("plum", "Cid")]
BATCHES = [
    [(1, "apple"), (2, "plum")],
    [(3, "pear"), (4, None)],
    [(5, "apple")],
]


def write(folder):
    """One file a micro-batch, in this order."""
    for number, batch in enumerate(BATCHES):
        file = Path(folder, f"{number}.json")
        file.write_text("\n".join(json.dumps({"n": n, "product": product}) for n, product in batch))
        os.utime(file, (number, number))


def main():
    spark = SparkSession.builder.master("local[1]").config("spark.sql.shuffle.partitions", 1).getOrCreate()
    with tempfile.TemporaryDirectory() as folder:
        write(folder)
        sellers = spark.createDataFrame(SELLERS, "product string, seller string")
        orders = spark.readStream.schema("n long, product string").option("maxFilesPerTrigger", 1).json(folder)
        offers = orders.join(sellers, "product", "left").select("n", "product", "seller")
        query = offers.writeStream.format("memory").queryName("offers").outputMode("append")
        query.trigger(availableNow=True).start().awaitTermination()
        rows = spark.table("offers").collect()
    print(*sorted(json.dumps({"table": "offers", **row.asDict()}) for row in rows), sep="\n")


if __name__ == "__main__":
    main()
