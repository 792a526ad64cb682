"""Records in other formats than JSON, from a real database through a real broker and registry."""

import io
import json
from pathlib import Path
from typing import Any

import fastavro
import httpx
from tests.harness.kafka import read_all
from tests.harness.pipeline import PipelineRig
from tests.harness.protobuf import protobuf_reader
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Database
from tests.harness.servers.registry import Registry


def test_a_consumer_of_avro_reads_what_was_written(
    database: Database, kafka: Kafka, registry: Registry, tmp_path: Path
) -> None:
    database.psql(
        "CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL, price numeric(8,2));"
        "INSERT INTO items VALUES (1, 'bolt', 1.25)"
    )
    prefix = kafka.topic_name().replace("-", "_")  # fastavro takes no other namespace
    settings = {
        "key.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter": "io.confluent.connect.avro.AvroConverter",
        "value.converter.schema.registry.url": registry.url,
        "value.converter.schema.registry.request.timeout.ms": 90_000,
        "topic.prefix": prefix,
        "sink.type": "kafka",
        "sink.bootstrap.servers": kafka.bootstrap,
    }
    pipeline = PipelineRig(database, tmp_path, settings)
    pipeline.catch_up()
    database.psql(
        "UPDATE items SET price = 2.5; ALTER TABLE items ADD colour text;"
        "UPDATE items SET colour = 'red'; DELETE FROM items"
    )
    pipeline.catch_up()
    schemas: dict[int, Any] = {}

    def value(data: bytes) -> Any:
        number = int.from_bytes(data[1:5], "big")
        if number not in schemas:
            answer = httpx.get(f"{registry.url}/schemas/ids/{number}", timeout=90)
            schemas[number] = fastavro.parse_schema(json.loads(answer.json()["schema"]))
        return fastavro.schemaless_reader(io.BytesIO(data[5:]), schemas[number])

    records = read_all(kafka.bootstrap, f"{prefix}.public.items")
    assert [json.loads(record.key()) for record in records] == [{"id": 1}] * 5
    *events, tombstone = [record.value() for record in records]
    assert tombstone is None
    found = [value(data) for data in events]
    assert [event["op"] for event in found] == ["r", "u", "u", "d"]
    assert [str((event["after"] or {}).get("price")) for event in found[:3]] == [
        "1.25",
        "2.50",
        "2.50",
    ]
    assert [("colour" in (event["after"] or {})) for event in found] == [False, False, True, False]
    assert len(schemas) == 2  # the column is a new version


def test_a_consumer_of_protobuf_reads_what_was_written(
    database: Database, kafka: Kafka, registry: Registry, tmp_path: Path
) -> None:
    database.psql(
        "CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(8,2), made date);"
        "INSERT INTO items VALUES (1, 'bolt', 1.25, '2024-02-29')"
    )
    prefix = kafka.topic_name()
    settings = {
        "key.converter": "io.confluent.connect.protobuf.ProtobufConverter",
        "key.converter.schema.registry.url": registry.url,
        "value.converter": "io.confluent.connect.protobuf.ProtobufConverter",
        "value.converter.schema.registry.url": registry.url,
        "value.converter.optional.for.nullables": True,
        "time.precision.mode": "connect",
        "topic.prefix": prefix,
        "sink.type": "kafka",
        "sink.bootstrap.servers": kafka.bootstrap,
    }
    pipeline = PipelineRig(database, tmp_path, settings)
    pipeline.catch_up()
    database.psql("UPDATE items SET price = NULL; DELETE FROM items")
    pipeline.catch_up()

    def read(data: bytes) -> dict[str, Any]:
        number = int.from_bytes(data[1:5], "big")
        answer = httpx.get(f"{registry.url}/schemas/ids/{number}", timeout=90)
        assert data[5:6] == b"\0"
        return protobuf_reader(answer.json()["schema"])(data[6:])

    records = read_all(kafka.bootstrap, f"{prefix}.public.items")
    assert [read(record.key() or b"") for record in records] == [{"id": 1}] * 4
    *events, tombstone = [record.value() for record in records]
    assert tombstone is None
    found = [read(data or b"") for data in events]
    assert [event["op"] for event in found] == ["r", "u", "d"]
    price = {"value": b"}", "precision": 3, "scale": 2}
    made = {"year": 2024, "month": 2, "day": 29}
    row = {"id": 1, "name": "bolt", "made": made}
    assert found[0]["after"] == row | {"price": price}
    assert found[1]["after"] == row
    assert "after" not in found[2]
