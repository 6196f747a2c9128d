"""Kafka: a source whose positions are offsets, and a sink that commits whole epochs in transactions."""

from engine.connectors.kafka.avro import Avro
from engine.connectors.kafka.json import Json
from engine.connectors.kafka.protobuf import Protobuf
from engine.connectors.kafka.registry import Registry
from engine.connectors.kafka.sink import KafkaSink
from engine.connectors.kafka.source import KafkaSource
from engine.connectors.kafka.values import Bytes
from engine.core.sinks import Guarantee
from engine.core.sources import MALFORMED

__all__ = [
    "MALFORMED",
    "Avro",
    "Bytes",
    "Guarantee",
    "Json",
    "KafkaSink",
    "KafkaSource",
    "Protobuf",
    "Registry",
]
