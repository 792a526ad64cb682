"""A consumer reads both products' topics by one function, and cannot show who wrote what."""

import io
import json
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
import httpx
import pytest
from confluent_kafka import Message
from tests.harness.both_products import BothProducts
from tests.harness.kafka import read_all
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Database
from tests.harness.servers.registry import Registry

Decode = Callable[[bytes | None], Any]
RUN_ID, RUN = "__debezium.context.runId", re.compile(rb'"[0-9a-f-]{36}"')
VOLATILE = ("ts_ms", "ts_us", "ts_ns")
OF_A_SNAPSHOT = (*VOLATILE, "lsn", "txId", "sequence")
JSON = "org.apache.kafka.connect.json.JsonConverter"
AVRO = "io.confluent.connect.avro.AvroConverter"


def from_json(data: bytes | None) -> Any:
    return None if data is None else json.loads(data)


def from_avro(registry: Registry) -> Decode:
    """Return a decoder of Confluent's wire format; the schema is part of what it gives."""

    @cache
    def schema(number: int) -> Any:
        answer = httpx.get(f"{registry.url}/schemas/ids/{number}", timeout=90)
        return json.loads(answer.raise_for_status().json()["schema"])

    def decode(data: bytes | None) -> Any:
        if data is None:
            return None
        assert data[0] == 0
        written = schema(int.from_bytes(data[1:5], "big"))
        stream = io.BytesIO(data[5:])
        payload = fastavro.schemaless_reader(stream, fastavro.parse_schema(written), None)
        assert not stream.read(1)
        return {"schema": written, "payload": payload}

    return decode


def reported_alike(message: Message, decode: Decode) -> dict[str, Any]:
    """Return a record as a consumer sees it, without what differs from run to run of one product, too."""
    value = decode(message.value())
    if value is not None:
        event = value["payload"]
        for name in VOLATILE:
            assert event.pop(name) > 0
        source = event["source"]
        assert source.pop("version")
        if source["snapshot"] != "false":
            for name in OF_A_SNAPSHOT:
                source.pop(name)
        elif source["sequence"] is not None:
            # the commit that was delivered before: of the run, the record's own LSN is not
            source["sequence"] = json.loads(source["sequence"])[1]
    return {
        "key": decode(message.key()),
        "value": value,
        "headers": [
            (name, RUN.sub(b'"<run>"', data or b"") if name == RUN_ID else data)
            for name, data in message.headers() or []
        ],
        "partition": message.partition() if message.key() is not None else "any",
    }


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize("form", ["json", "avro"])
def test_a_consumer_cannot_show_who_wrote_a_record(
    database: Database, kafka: Kafka, request: pytest.FixtureRequest, tmp_path: Path, form: str
) -> None:
    settings: dict[str, object]
    if form == "json":
        decode: Decode = from_json
        settings = {f"{part}.converter.schemas.enable": "true" for part in ("key", "value")}
    else:
        registry = request.getfixturevalue("registry")
        decode = from_avro(registry)
        settings = {
            f"{part}.converter.schema.registry.url": registry.url for part in ("key", "value")
        }
    settings["header.converter.schemas.enable"] = "true"
    for part in ("key", "value"):
        settings[f"{part}.converter"] = JSON if form == "json" else AVRO
    story = BothProducts(database, kafka, tmp_path, settings, form)
    story.play()
    for table, topic in story.topics.items():
        theirs, ours = [], []
        for message in read_all(kafka.bootstrap, topic):
            (theirs if story.of_debezium(message) else ours).append(reported_alike(message, decode))
        if table == "event":  # without a key: any partition, and no order between them
            for records in (theirs, ours):
                records.sort(key=lambda record: str(record["value"]["payload"]["after"]))
        assert len(theirs) > 20
        assert {record["value"] is None for record in ours} >= {False, table == "account"}
        for mine, other in zip(ours, theirs, strict=True):
            assert mine == other
        assert any(record["headers"] for record in ours) or table == "event"
