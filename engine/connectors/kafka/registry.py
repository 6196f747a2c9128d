"""Schemas that a value names by an id, as Confluent's registry and those that speak its HTTP API write them.

Such a value begins with a zero byte and the id in four bytes.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa

from engine.connectors.kafka.client import KafkaAway, KafkaError
from engine.connectors.kafka.values import Decoder

ANSWER_S = 10.0
HEAD_BYTES = 5

Made = TypeVar("Made")


@dataclass(frozen=True)
class Registry:
    """A schema registry. `url` is its address; `auth`: user and password, if it asks for them."""

    url: str
    auth: tuple[str, str] | None = field(default=None, repr=False)

    def avro(self, id: int) -> dict[str, Any]:
        """Returns the schema of this id, and those that it refers to, as one reads them."""
        return self._ask(f"/schemas/ids/{id}", "AVRO", {})

    def protobuf(self, id: int) -> bytes:
        """Returns the file of this id as a serialized FileDescriptorProto."""
        answer = self._ask(f"/schemas/ids/{id}", "PROTOBUF", {"format": "serialized"})
        return base64.b64decode(answer["schema"])

    def version(self, subject: str, version: int) -> dict[str, Any]:
        return self._get(f"/subjects/{subject}/versions/{version}", {})

    def _ask(self, path: str, kind: str, params: dict[str, str]) -> dict[str, Any]:
        answer = self._get(path, params)
        found = answer.get("schemaType", "AVRO")
        if found != kind:
            raise UnknownSchema(f"its schema ({self.url}{path}) is {found}, not {kind}")
        return answer

    def _get(self, path: str, params: dict[str, str]) -> dict[str, Any]:
        import httpx  # here: slots that ask no registry do without

        try:
            answer = httpx.get(self.url.rstrip("/") + path, params=params, auth=self.auth, timeout=ANSWER_S)
        except httpx.HTTPError as error:
            raise KafkaAway(f"the schema registry at {self.url} does not answer: {error}") from error
        if answer.status_code == 404:
            raise UnknownSchema(f"the schema registry has no {path}")
        if answer.status_code in (401, 403):
            raise KafkaError(
                f"the schema registry at {self.url} refuses the credentials: give the right ones, as in "
                "Registry(url, auth=(user, password))"
            )
        if answer.status_code != 200:
            raise KafkaAway(f"the schema registry at {self.url} answers {answer.status_code} to {path}")
        found: dict[str, Any] = answer.json()
        return found


class UnknownSchema(ValueError):
    """A value names a schema that the registry does not have, or one of another kind: the value is malformed."""


class ByRegistry(Decoder):
    """Decodes values that name their schemas. `make`: makes the decoder of an id, which is kept."""

    def __init__(self, make: Callable[[int], Decoder]) -> None:
        self._make = make
        self._known: dict[int, Decoder] = {}
        self._unknown: dict[int, UnknownSchema] = {}

    def decode(self, values: Sequence[bytes]) -> pa.RecordBatch:
        heads = [value[:HEAD_BYTES] for value in values]
        cuts = [0, *(at for at in range(1, len(heads)) if heads[at] != heads[at - 1]), len(heads)]
        return pa.concat_batches(
            [
                self._of(heads[first]).decode([value[HEAD_BYTES:] for value in values[first:last]])
                for first, last in itertools.pairwise(cuts)
            ]
        )

    def _of(self, head: bytes) -> Decoder:
        if len(head) < HEAD_BYTES or head[0] != 0:
            raise ValueError("it does not begin with a zero byte and the id of a schema")
        id = int.from_bytes(head[1:], "big")
        if id in self._unknown:
            raise self._unknown[id]
        if id not in self._known:
            try:
                self._known[id] = self._make(id)
            except UnknownSchema as error:
                self._unknown[id] = error
                raise
        return self._known[id]
