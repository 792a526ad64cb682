"""Header values in Kafka, as who ran the file before wrote them: Connect's worker, Debezium Server, its engine."""

import json

import pytest
import yaml
from tests.harness.command import waltap
from tests.harness.kafka import read_all

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
    prefix = kafka.topic_name("heads").replace("-", "_")
    given = {
        "connector.class": CONNECTOR, "plugin.name": "pgoutput", "topic.prefix": prefix,
        "snapshot.mode": "no_data", **database.properties(), **SCHEMALESS,
    }  # fmt: skip
    ending, text = write(given, kafka.bootstrap)
    path = tmp_path / f"file{ending}"
    path.write_text(text)
    for change in ("", "INSERT INTO items VALUES (1, 'a\"b'); UPDATE items SET id = 1030"):
        database.psql(change)
        done = waltap("run", path, "--until-idle", "1", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
    first, deleted, *_ = read_all(kafka.bootstrap, f"{prefix}.public.items")
    assert dict(first.headers() or [])["__debezium.context.taskId"] == form.format("0").encode()
    (moved,) = (v for n, v in deleted.headers() or [] if n == "__debezium.newkey")
    assert moved == b'{"id":1030,"tag":"a\\"b"}'
