"""A real schema registry: subjects, ids, what it refuses, and pipelines while it is away."""

import json
import socket
from typing import Any

import httpx
import pytest

from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database
from tests.harness.servers.registry import Registry
from waltap.source.position import parse_lsn
from waltap.errors import Retry
from waltap.format.converter import ConverterContext
from waltap.format.record import Record
from waltap.hookspecs import hookimpl
from waltap.mapping.connect_schema import Field, Kind, Schema
from waltap.sink.sink import Sink, SinkCapabilities
from waltap.specs import SinkSpec
from waltap_formats.avro.converter import AvroConverter
from waltap_formats.avro.properties import AvroProperties
from waltap_formats.errors import (
    RegistryAway,
    SchemaIncompatible,
    SchemaInvalid,
    SchemaNotRegistered,
)
from waltap_formats.protobuf.converter import ProtobufConverter
from waltap_formats.protobuf.properties import ProtobufProperties

PATIENT = {
    "schema.registry.retry.timeout.ms": 0,
    "schema.registry.request.timeout.ms": 90_000,  # of a busy machine
}
ID = Field("id", Schema(kind=Kind.INT32))


def row(name: str, *more: Field) -> Schema:
    return Schema(kind=Kind.STRUCT, name=name, fields=(ID, *more))


def converter(url: str, side: str = "value", **more: object) -> AvroConverter:
    given = {"schema.registry.url": url, **PATIENT, **more}
    properties = AvroProperties.model_validate(given)
    return AvroConverter(properties, ConverterContext(side=side))  # type: ignore[arg-type]


def subjects(registry: Registry, part: str) -> list[str]:
    return [
        name for name in httpx.get(f"{registry.url}/subjects", timeout=90).json() if part in name
    ]


@pytest.mark.parametrize(
    ("strategy", "side", "subject"),
    [
        ("TopicNameStrategy", "value", "shop-{0}-value"),
        ("TopicNameStrategy", "key", "shop-{0}-key"),
        ("RecordNameStrategy", "value", "shop.{0}.Value"),
        ("TopicRecordNameStrategy", "key", "shop-{0}-shop.{0}.Value"),
    ],
)
def test_subjects_are_named_by_the_strategy(
    registry: Registry, strategy: str, side: str, subject: str
) -> None:
    unique = f"{strategy}_{side}"
    strategy = f"io.confluent.kafka.serializers.subject.{strategy}"
    made = converter(registry.url, side, **{f"{side}.subject.name.strategy": strategy})
    encode = made.encoder(f"shop-{unique}", row(f"shop.{unique}.Value"))
    data = encode({"id": 1})
    assert subjects(registry, unique) == [subject.format(unique)]
    number = int.from_bytes(data[1:5], "big")
    assert (data[0], data[5:]) == (0, b"\x02")
    known = json.loads(
        httpx.get(f"{registry.url}/schemas/ids/{number}", timeout=90).json()["schema"]
    )
    assert (known["namespace"], known["name"]) == (f"shop.{unique}", "Value")


def test_one_schema_has_one_id_in_every_process(registry: Registry) -> None:
    schema = row("one.id.Value")
    first = converter(registry.url).encoder("one.id", schema)({"id": 1})
    assert converter(registry.url).encoder("one.id", schema)({"id": 1}) == first


def test_an_incompatible_schema_is_refused_by_subject_version_and_difference(
    registry: Registry,
) -> None:
    subject = "incompatible-value"
    converter(registry.url).encoder("incompatible", row("a.Value"))
    answer = httpx.put(
        f"{registry.url}/config/{subject}", json={"compatibility": "BACKWARD"}, timeout=90
    )
    assert answer.status_code == 200, answer.text
    with pytest.raises(SchemaIncompatible) as refused:
        converter(registry.url).encoder(
            "incompatible", row("a.Value", Field("colour", Schema(kind=Kind.STRING)))
        )
    assert refused.value.retry is Retry.NEVER
    text = str(refused.value)
    assert f"{subject} is not compatible with version 1: the field colour is new without" in text
    # the remedy
    answer = httpx.put(
        f"{registry.url}/config/{subject}", json={"compatibility": "NONE"}, timeout=90
    )
    converter(registry.url).encoder(
        "incompatible", row("a.Value", Field("colour", Schema(kind=Kind.STRING)))
    )


def test_protobuf_that_is_not_compatible_is_refused_with_its_difference(
    registry: Registry,
) -> None:
    def encode(*more: Field) -> bytes | None:
        given = {"schema.registry.url": registry.url, **PATIENT}
        properties = ProtobufProperties.model_validate(given)
        made = ProtobufConverter(properties, ConverterContext(side="value"))
        return made.encoder("proto", row("my-shop.a.Value", *more))({"id": 1, "price": b"\x05"})

    price = Schema(
        kind=Kind.BYTES,
        optional=True,
        name="org.apache.kafka.connect.data.Decimal",
        parameters=(("scale", "2"), ("connect.decimal.precision", "8")),
    )
    first = encode(Field("price", price))
    assert first is not None
    assert first[5:] == b"\x00\x08\x01\x12\x07\x0a\x01\x05\x10\x01\x18\x02"
    answer = httpx.put(
        f"{registry.url}/config/proto-value", json={"compatibility": "BACKWARD"}, timeout=90
    )
    assert answer.status_code == 200, answer.text
    with pytest.raises(SchemaIncompatible) as refused:
        encode(Field("price", Schema(kind=Kind.STRING)))
    told = "proto-value is not compatible with version 1: the field Value.price was "
    assert f"{told}confluent.type.Decimal and is string" in str(refused.value)


def test_a_schema_that_may_not_be_registered_is_an_error(registry: Registry) -> None:
    schema = row("by.hand.Value")
    closed = converter(registry.url, **{"auto.register.schemas": False})
    with pytest.raises(SchemaNotRegistered, match="by.hand-value"):
        closed.encoder("by.hand", schema)
    converter(registry.url).encoder("by.hand", schema)
    assert closed.encoder("by.hand", schema)({"id": 1})[5:] == b"\x02"
    latest = converter(registry.url, **{"use.latest.version": True})
    assert latest.encoder("by.hand", schema)({"id": 1})[5:] == b"\x02"


def test_an_address_that_is_no_registrys_is_told(registry: Registry) -> None:
    with pytest.raises(SchemaInvalid, match="ccompat"):
        converter(f"{registry.url}/elsewhere").encoder("t", row("a.Value"))


def test_a_registry_that_is_away_is_asked_again(registry: Registry) -> None:
    with socket.socket() as held:  # bound and not listening: connections are refused
        held.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(RegistryAway) as away:
            converter(nobody).encoder("away", row("a.Value"))
        assert away.value.retry is Retry.RECONNECT
        assert nobody in str(away.value)
        # the second address answers
        assert converter(f"{nobody},{registry.url}").encoder("away", row("a.Value"))({"id": 1})


def test_no_secret_of_an_address_is_told() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        url = f"http://joe:hunter2@127.0.0.1:{held.getsockname()[1]}"
        with pytest.raises(RegistryAway) as away:
            converter(url).encoder("away", row("a.Value"))
    assert "hunter2" not in str(away.value)


class Kept:
    """Contributes a sink that takes records and keeps them."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    @hookimpl
    def register_sinks(self) -> list[SinkSpec]:
        kept = self

        class KeepingRecords(Sink):
            capabilities = SinkCapabilities(records=True)
            _written: Any = None

            def open(self) -> None:
                return None

            def write(self, batch: Any) -> None:
                kept.records += batch.records
                self._written = batch.position

            def flush(self) -> Any:
                return self._written

            def close(self) -> None:
                pass

        return [
            SinkSpec(name="records", summary="Keeps records.", factory=lambda *_: KeepingRecords())
        ]


def test_a_pipeline_outlives_its_registry(
    database: Database, registry: Registry, tmp_path: Any
) -> None:
    """While the registry is away nothing moves; once it is there everything comes, in order."""
    database.psql("CREATE TABLE items (id int PRIMARY KEY, name text)")
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        nobody = f"http://127.0.0.1:{held.getsockname()[1]}"
        settings = {
            "value.converter": "io.confluent.connect.avro.AvroConverter",
            "key.converter": "json",
            "value.converter.schema.registry.url": nobody,
            "value.converter.schema.registry.retry.timeout.ms": 0,
            "snapshot.mode": "no_data",
            "topic.prefix": database.name,
            "sink.type": "records",
        }
        pipeline, kept = PipelineRig(database, tmp_path, settings), Kept()
        with pipeline.running(kept) as run:
            database.psql("INSERT INTO items SELECT n, 'item ' || n FROM generate_series(1, 3) n")
            ((end,),) = database.execute("SELECT pg_current_wal_lsn()::text")
            run.until(lambda: len(run.notices.failures) >= 2, "two failures", within=90)
            assert {type(error) for error, _ in run.notices.failures} == {RegistryAway}
            assert all(retried for _, retried in run.notices.failures)
            assert not kept.records
            after = pipeline.offset()
            assert after is not None
            assert after.sole.position.end_lsn < parse_lsn(end)
    with pipeline.running(kept, **{"value.converter.schema.registry.url": registry.url}) as run:
        run.until(lambda: len(kept.records) >= 3, "the records", within=90)
    assert [record.key for record in kept.records] == [b'{"id":%d}' % n for n in (1, 2, 3)]
    assert all(record.value and record.value[0] == 0 for record in kept.records)


def test_json_lines_refuse_what_is_no_json(
    database: Database, registry: Registry, tmp_path: Any
) -> None:
    from waltap.pipeline.preflight import FormatUnfit

    settings = {
        "value.converter": "avro", "schema.registry.url": registry.url, "sink.type": "jsonl",
        "sink.path": str(tmp_path / "out.jsonl"),
    }  # fmt: skip
    with pytest.raises(FormatUnfit, match="the sink jsonl holds JSON, and the format is avro"):
        PipelineRig(database, tmp_path, settings).run()
