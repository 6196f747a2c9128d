"""Adds to each order who sells its product, from a table that does not change. An order of an unknown product stays."""

from engine.api import FlatMapFunction, StreamEnvironment
from engine.connectors.table import TableSink
from tests.ports.source import OneByOne

SELLERS = [("apple", "Ann"), ("apple", "Bob"), ("plum", "Cid")]
BATCHES = [
    [(1, "apple"), (2, "plum")],
    [(3, "pear"), (4, None)],
    [(5, "apple")],
]


class LeftJoin(FlatMapFunction):
    def open(self, context):
        self.sellers = {}
        for product, seller in SELLERS:
            self.sellers.setdefault(product, []).append(seller)

    def flat_map(self, value):
        for seller in self.sellers.get(value["product"], [None]):
            yield {**value, "seller": seller}


def job(env: StreamEnvironment) -> None:
    source = OneByOne([{"n": n, "product": product} for batch in BATCHES for n, product in batch])
    orders = env.from_source(source, "n long, product string", uid="orders")
    offers = orders.flat_map(LeftJoin(), schema="n long, product string, seller string")
    offers.sink_to(TableSink("offers"), uid="out")
