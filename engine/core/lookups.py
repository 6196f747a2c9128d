"""The interface of tables that a stream asks for the rows of its keys (`DataStream.join_lookup`)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import pyarrow as pa


class LookupTable(ABC):
    """A table outside of the job. `schema`: the columns that are read, with the keys among them."""

    schema: pa.Schema

    @abstractmethod
    def fetch(self, keys: pa.RecordBatch) -> pa.Table:
        """Returns the rows with these keys, with the columns of `schema`. Keys are distinct and not null.

        Runs off the task thread, and may block. An OSError or a StoreError restarts the attempt.
        """
