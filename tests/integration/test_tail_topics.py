"""`waltap tail kafka://…`: topics of a real broker, in every format, by a real registry."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic
from tests.harness.command import waltap
from tests.harness.kafka import create
from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Database
from tests.harness.servers.registry import Registry

from waltap_kafka import client
from waltap_kafka.errors import KafkaTopicUnread
from waltap_kafka.topic_records import TopicRecords

WAIT_SECONDS = 240
ALL = ("--from", "beginning", "--until-idle", "0")
CONFLUENT = "io.confluent.connect"
SLOWLY = "schema.registry.request.timeout.ms"


def tail(place: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    done = waltap("tail", place, *arguments, wait=WAIT_SECONDS, **environment)
    assert "Traceback" not in done.stderr
    assert "WT-9000" not in done.stderr
    return done


def shown(place: str, *arguments: str) -> list[str]:
    done = tail(place, *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def documents(place: str, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in shown(place, "--json", *arguments)]


def said(done: "subprocess.CompletedProcess[str]") -> str:
    return " ".join(done.stderr.split())


def write(kafka: Kafka, topic: str, *records: dict[str, Any]) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for record in records:
        producer.produce(topic, **record)
    assert producer.flush(WAIT_SECONDS) == 0


@pytest.fixture
def topic(kafka: Kafka) -> str:
    name = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(name, 1))
    return name


@pytest.mark.parametrize(
    ("converter", "form", "options"),
    [
        ("org.apache.kafka.connect.json.JsonConverter", "json", {"schemas.enable": "false"}),
        ("org.apache.kafka.connect.json.JsonConverter", "json with schema", {"schemas.enable": "true"}),
        (f"{CONFLUENT}.avro.AvroConverter", "avro", {}),
        (f"{CONFLUENT}.protobuf.ProtobufConverter", "protobuf", {}),
        (f"{CONFLUENT}.json.JsonSchemaConverter", "json-schema", {}),
        ("io.debezium.converters.CloudEventsConverter", "cloudevent, json", {}),
        ("io.debezium.converters.CloudEventsConverter", "cloudevent, json",
         {"data.serializer.type": "avro"}),
        ("io.debezium.converters.CloudEventsConverter", "cloudevent, avro",
         {"serializer.type": "avro", "data.serializer.type": "avro"}),
    ],
)  # fmt: skip
def test_changes_are_shown_whatever_their_format(
    database: Database,
    kafka: Kafka,
    registry: Registry,
    tmp_path: Path,
    converter: str,
    form: str,
    options: dict[str, str],
) -> None:
    database.psql(
        "CREATE TABLE items (id int PRIMARY KEY, name text NOT NULL, price numeric(8,2));"
        "ALTER TABLE items REPLICA IDENTITY FULL; INSERT INTO items VALUES (1, 'bolt', 1.25)"
    )
    prefix = kafka.topic_name().replace("-", "_")
    settings = {
        "value.converter": converter,
        "topic.prefix": prefix,
        "decimal.handling.mode": "string",
        "sink.type": "kafka",
        "sink.bootstrap.servers": kafka.bootstrap,
        **{f"value.converter.{name}": value for name, value in options.items()},
    }
    asked = form in ("avro", "protobuf", "json-schema")
    inner = "avro." if form.startswith("cloudevent") else ""
    if asked or "data.serializer.type" in options:
        settings[f"value.converter.{inner}schema.registry.url"] = registry.url
    if asked:
        settings |= {"key.converter": converter, "key.converter.schema.registry.url": registry.url}
    else:
        settings |= {
            "key.converter": "org.apache.kafka.connect.json.JsonConverter",
            "key.converter.schemas.enable": "false",
        }
    pipeline = PipelineRig(database, tmp_path, settings)
    pipeline.catch_up()
    database.psql("UPDATE items SET price = 2.5; DELETE FROM items")
    pipeline.catch_up()
    place = f"kafka://{kafka.bootstrap}/{prefix}.public.items"
    known = ("--registry", registry.url, "--set", f"{SLOWLY}=90000")
    lines = [line.split(" ", 2)[1:] for line in shown(place, *ALL, *known)]
    assert [at for at, _ in lines] == ["0@0", "0@1", "0@2", "0@3"]
    read, update, delete, tombstone = (line for _, line in lines)
    assert read.startswith("READ     public.items  id=1 name='bolt' price='1.25'")
    assert update.startswith("UPDATE   public.items  id=1 name='bolt' price='1.25' → '2.50'")
    assert delete.startswith("DELETE   public.items  id=1 name='bolt' price='2.50'")
    assert tombstone.startswith('TOMBSTONE {"id":1}')
    records = documents(place, *ALL, *known)
    assert [record["value_format"] for record in records] == [form] * 3 + ["null"]
    events = [record["value"].get("data", record["value"]) for record in records[:3]]
    assert events[1]["after"] == {"id": 1, "name": "bolt", "price": "2.50"}
    assert records[3]["value"] is None


def test_anything_else_is_shown_as_it_is(kafka: Kafka, topic: str) -> None:
    write(
        kafka,
        topic,
        {"value": "plain\x1b[31m text", "timestamp": 1},
        {
            "value": "späte Zeile",
            "key": "k",
            "headers": [("h", b"1"), ("raw", b"\xff"), ("no", None)],
        },
        {"value": b"\xff\xfe\x00"},
        {"value": b"\x00\x00\x00\x00\x07{}"},
        {"value": '{"a":NaN}'},
        {"value": "[" * 400 + "]" * 400},
        {"value": '{"op":"c","source":{},"after":7}'},
        {"value": '{"half":"\\ud800","big":123456789012345678901234567890}', "key": b""},
        {"value": None},
    )
    place = f"kafka://{kafka.bootstrap}/{topic}"
    done = tail(place, *ALL)
    assert done.returncode == 0, done.stderr
    assert "--registry URL reads them" in said(done)
    lines = [line.split(" ", 2)[2] for line in done.stdout.splitlines()]
    assert "\x1b" not in done.stdout
    assert lines[:5] == [
        "RECORD   no key → plain\\x1b[31m text".replace("no key → ", ""),
        "RECORD   k → späte Zeile  [h=1 raw=\\xff no=NULL]",
        "RECORD   \\xff\\xfe\\x00",
        "RECORD   \\x00\\x00\\x00\\x00\\x07{}",
        'RECORD   {"a":NaN}',
    ]
    assert lines[5] == f"RECORD   {'[' * 400}{']' * 400}"
    assert lines[6:] == [
        "INSERT   ",
        'RECORD    → {"half":"\\ud800","big":123456789012345678901234567890}',
        "TOMBSTONE no key",
    ]
    found = documents(place, *ALL)
    assert [record["offset"] for record in found] == list(range(9))
    assert found[0]["timestamp"] == 1
    assert (found[1]["key"], found[1]["headers"][0]) == ("k", {"key": "h", "value": 1})
    assert (found[2]["value"], found[2]["value_format"]) == ("//4A", "bytes")
    assert found[7]["value"]["half"] == "\ud800"
    assert (found[8]["key"], found[8]["value"]) == (None, None)


def test_bytes_that_no_schema_fits_are_shown_with_the_reason(
    kafka: Kafka, registry: Registry, topic: str
) -> None:
    schema = {"type": "record", "name": f"R{topic.replace('-', '_')}", "fields": [
        {"name": "many", "type": {"type": "array", "items": "null"}}]}  # fmt: skip
    answer = httpx.post(
        f"{registry.url}/subjects/{topic}-value/versions",
        json={"schema": json.dumps(schema)},
        timeout=90,
    )
    head = b"\x00" + int(answer.json()["id"]).to_bytes(4, "big")
    claimed = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    write(
        kafka,
        topic,
        {"value": b"\x00\x7f\xff\xff\xff\x01"},
        {"value": head + claimed},
        {"value": head + b"\x04\x00"},
        {"value": head + b"\x00rest"},
        {"value": head},
    )
    known = ("--registry", registry.url, "--set", f"{SLOWLY}=90000")
    found = documents(f"kafka://{kafka.bootstrap}/{topic}", *ALL, *known)
    assert found[0]["value_problem"] == f"the registry has no schema {0x7FFFFFFF}"
    assert "items are claimed" in found[1]["value_problem"]
    assert found[2]["value"] == {"many": [None, None]}
    assert "4 bytes follow" in found[3]["value_problem"]
    assert "0 follow" in found[4]["value_problem"]
    line = shown(f"kafka://{kafka.bootstrap}/{topic}", *ALL, *known)[0]
    assert line.endswith(
        f"\\x00\\x7f\\xff\\xff\\xff\\x01  (the registry has no schema {0x7FFFFFFF})"
    )


def test_where_it_begins_and_ends(kafka: Kafka, topic: str) -> None:
    other = kafka.topic_name()
    create(kafka.bootstrap, NewTopic(other, 2))
    write(kafka, topic, *({"value": str(number)} for number in range(5)))
    write(kafka, other, {"value": "a", "partition": 1})
    place = f"kafka://{kafka.bootstrap}/{topic}"
    for options, values in (
        (("--from", "3", "--until-idle", "0"), [3, 4]),
        ((*ALL, "--max-records", "2"), [0, 1]),
        (("--until-idle", "0"), []),  # it begins at the end
        (("--from", "99", "--until-idle", "0"), []),
    ):
        assert [each["value"] for each in documents(place, *options)] == values
    lines = shown(f"kafka://{kafka.bootstrap}/{topic},{other}", *ALL)
    assert any(f" {other}/1@0 RECORD   a" in line for line in lines)
    assert len(lines) == 6


def test_records_that_come_later_are_shown_and_those_of_aborted_transactions_are_not(
    kafka: Kafka, topic: str
) -> None:
    settings = {"bootstrap.servers": kafka.bootstrap, "transactional.id": topic}
    producer = Producer(settings)
    producer.init_transactions(WAIT_SECONDS)
    for value, end in (("undone", "abort"), ("done", "commit")):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush(WAIT_SECONDS)
        getattr(producer, f"{end}_transaction")(WAIT_SECONDS)
    place = f"kafka://{kafka.bootstrap}/{topic}"
    # the marker of the commit may follow its answer
    until(
        lambda: [each["value"] for each in documents(place, *ALL)] == ["done"], "what is committed"
    )
    everything = documents(place, *ALL, "--set", "consumer.isolation.level=read_uncommitted")
    assert [each["value"] for each in everything] == ["undone", "done"]
    process = subprocess.Popen(
        [sys.executable, "-m", "waltap", "tail", place, "--json", "--max-records", "1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    )
    try:
        assert process.stderr is not None
        assert "from end" in process.stderr.readline()
        write(kafka, topic, {"value": "later"}, {"value": "not shown"})
        output, _ = process.communicate(timeout=WAIT_SECONDS)
    finally:
        process.kill()
    assert [json.loads(line)["value"] for line in output.splitlines()] == ["later"]
    assert process.returncode == 0


def test_what_cannot_be_read_names_what_to_do(kafka: Kafka, topic: str, registry: Registry) -> None:
    broker = f"kafka://{kafka.bootstrap}"
    place = f"{broker}/{topic}"
    write(kafka, topic, {"value": b"\x00\x00\x00\x00\x01x"})
    for wrong, words, code in [
        ((f"{broker}/not-there", *ALL), "WT-5410 topic not-there does not exist", 1),
        ((broker, *ALL), "kafka:// does not name brokers and topics", 2),
        (("kafka://u:pazzword@host/t", *ALL), "kafka:// does not name brokers and topics", 2),
        ((place, "--from", "soon"), "--from is no place in a topic; given: soon", 2),
        ((place, "--table", "x", "--snapshot"), "--snapshot means nothing for kafka://", 2),
        ((place, "--set", "novalue"), "--set is not NAME=VALUE", 2),
        ((place, "--set", "colour=red"), "colour is no property of a consumer", 2),
        ((place, "--set", "consumer.colour=red"), "consumer.colour librdkafka has no such", 2),
        ((place, *ALL, "--registry", "ftp://x"), "an address is http://HOST:PORT", 2),
        ((place, *ALL, "--registry", registry.url, "--set", "colour=red"),
         "colour is no property of a registry", 2),
        ((place, *ALL, "--registry", "http://127.0.0.1:1",
          "--set", "schema.registry.retry.timeout.ms=0"), "WT-3316", 1),
        ((place, *ALL, "--registry", f"{registry.url}/nowhere"), "WT-3316", 1),
        (("postgres://u@127.0.0.1:1/d", "--from", "end"), "--from means nothing for a database", 2),
    ]:  # fmt: skip
        done = tail(*wrong)
        text = said(done)
        assert done.returncode == code, text
        assert all(word in text for word in words.split(" ", 1)), text
        assert "pazzword" not in text


def test_what_is_not_installed_is_named() -> None:
    done = tail("kafka://127.0.0.1:1/t", WALTAP_PLUGINS="postgres")
    assert done.returncode == 2
    assert "pip install 'waltap[kafka]'" in said(done)
    done = tail("kafka://127.0.0.1:1/t", "--registry", "http://127.0.0.1:1", WALTAP_PLUGINS="kafka")
    assert done.returncode == 2
    assert "pip install 'waltap[formats]'" in said(done)


def test_a_broker_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REACH_S", 0.5)
    stream = TopicRecords("kafka://127.0.0.1:1/t", "end", {})
    with pytest.raises(KafkaTopicUnread, match="127.0.0.1:1 cannot be reached"):
        stream.read(0)
    stream.close()
    assert stream.read(0) == ()
