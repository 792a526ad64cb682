"""Header values in Kafka, as who ran the file before wrote them: Connect's worker, Debezium Server, its engine."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.harness import command
from tests.harness.kafka import read_all
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Database

waltap = functools.partial(command.waltap, COLUMNS="300")

CONNECTOR = "io.debezium.connector.postgresql.PostgresConnector"
SCHEMALESS = {f"{side}.converter.schemas.enable": "false" for side in ("key", "value", "header")}
JSON_TEXT, PLAIN = '"{}"', "{}"


def connect(given: dict[str, str], servers: str) -> tuple[str, str]:
    return ".json", json.dumps({"config": {**given, "bootstrap.servers": servers}})


def standalone(given: dict[str, str], servers: str) -> tuple[str, str]:
    given = {"name": "inventory", **given, "bootstrap.servers": servers}
    return ".properties", "".join(f"{name}={value}\n" for name, value in given.items())


def strimzi(given: dict[str, str], servers: str) -> tuple[str, str]:
    config = {name: value for name, value in given.items() if name != "connector.class"}
    config["bootstrap.servers"] = servers
    resource = {
        "apiVersion": "kafka.strimzi.io/v1beta2",
        "kind": "KafkaConnector",
        "metadata": {"name": "inventory"},
        "spec": {"class": CONNECTOR, "tasksMax": 1, "config": config},
    }
    return ".yaml", yaml.safe_dump(resource)


def engine(given: dict[str, str], servers: str) -> tuple[str, str]:
    store = "org.apache.kafka.connect.storage.MemoryOffsetBackingStore"
    given = {**given, "offset.storage": store, "waltap.sink.type": "kafka"}
    given["waltap.sink.bootstrap.servers"] = servers
    return ".properties", "".join(f"{name}={value}\n" for name, value in given.items())


def server(given: dict[str, str], servers: str) -> tuple[str, str]:
    lines = [f"debezium.source.{name}={value}" for name, value in given.items()]
    lines += [
        "debezium.sink.type=kafka",
        f"debezium.sink.kafka.producer.bootstrap.servers={servers}",
    ]
    return ".properties", "\n".join(lines)


def delivered(
    database: Database, kafka: Kafka, folder: Path, write: Any, change: str, topic: str, **more: str
) -> list[Any]:
    """Run a file of some kind, and again behind ``change``; return what is in ``topic`` below the prefix `heads`."""
    prefix = kafka.topic_name("heads").replace("-", "_")
    given = {
        "connector.class": CONNECTOR, "plugin.name": "pgoutput", "topic.prefix": prefix,
        "snapshot.mode": "no_data", **database.properties(), **more,
    }  # fmt: skip
    ending, text = write(given, kafka.bootstrap)
    path = folder / f"file{ending}"
    path.write_text(text.replace("PREFIX", prefix))
    for script in ("", change):
        if script:
            database.psql(script)
        done = waltap("run", path, "--until-idle", "1", cwd=folder)
        assert done.returncode == 0, done.stderr
    return read_all(kafka.bootstrap, f"{prefix}.{topic}")


@pytest.mark.parametrize(
    ("write", "form"),
    [
        (connect, PLAIN),
        (standalone, PLAIN),
        (strimzi, PLAIN),
        (engine, JSON_TEXT),
        (server, JSON_TEXT),
    ],
)
def test_header_values_are_as_the_kind_of_file_has_them(database, kafka, tmp_path, write, form):
    database.psql("CREATE TABLE items (id int, tag text, PRIMARY KEY (id, tag))")
    change = "INSERT INTO items VALUES (1, 'a\"b'); UPDATE items SET id = 1030"
    first, deleted, *_ = delivered(
        database, kafka, tmp_path, write, change, "public.items", **SCHEMALESS
    )
    assert dict(first.headers() or [])["__debezium.context.taskId"] == form.format("0").encode()
    (moved,) = (v for n, v in deleted.headers() or [] if n == "__debezium.newkey")
    assert moved == b'{"id":1030,"tag":"a\\"b"}'


def test_the_outboxs_headers_are_plain_texts_in_a_connect_file(database, kafka, tmp_path):
    database.psql(
        "CREATE TABLE outbox (id uuid PRIMARY KEY, aggregatetype text, aggregateid text, type text,"
        " payload text)"
    )
    router = {
        "transforms": "outbox",
        "transforms.outbox.type": "io.debezium.transforms.outbox.EventRouter",
        "transforms.outbox.route.topic.replacement": "PREFIX.${routedByValue}",
        "transforms.outbox.table.fields.additional.placement": "type:header:eventType",
    }
    token = "0e37df36-f698-11e6-8dd4-cb9ced3df976"
    change = f"INSERT INTO outbox VALUES ('{token}', 'order', '7', 'Made', 'text')"
    (record,) = delivered(database, kafka, tmp_path, connect, change, "order", **router)
    headers = dict(record.headers() or [])
    assert (headers["id"], headers["eventType"]) == (token.encode(), b"Made")
