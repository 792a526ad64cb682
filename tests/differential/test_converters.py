"""What waltap's formats write against what Kafka Connect's converters write of the same values."""

import json
import math
from base64 import b64decode
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from tests.differential.converters import Question, ask, protobuf_class_path
from tests.differential.corpus import CORPORA
from tests.differential.normalise import SAME
from tests.harness.change_records import SOURCE, change_records
from tests.harness.schemas import MAYBE_TEXT, TEXT, of
from tests.harness.servers.jars import MissingProgram
from tests.harness.servers.registry import Registry
from tests.harness.typed_records import typed_records, with_schema, with_schema_of
from tests.harness.typed_values import typed  # noqa: F401 - a fixture

from waltap.changes.mapping import envelope
from waltap.changes.mapping.connect_schema import DECIMAL, ConnectKind, Field, Schema
from waltap.encoders.format.converter import ConverterContext, SchemaMismatch
from waltap.encoders.format.record_transform import ConnectRecord
from waltap.encoders.json.converter import JsonConverter, JsonConverterProperties
from waltap.errors import ConfigurationError
from waltap_formats.avro.binary import avro_writer
from waltap_formats.avro.schema import avro_schema
from waltap_formats.cloudevents import CloudEventsConverter
from waltap_formats.plain import BytesConverter, BytesProperties
from waltap_formats.properties import CloudEventsProperties, ProtobufProperties
from waltap_formats.protobuf.converter import ProtobufConverter

CLOUD_EVENTS = "io.debezium.converters.CloudEventsConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"
AVRO = "io.confluent.connect.avro.AvroConverter"
PROTOBUF = "io.confluent.connect.protobuf.ProtobufConverter"


def ordered(schema: str) -> object:
    """Return a schema with the order of its members, which registries take as a difference."""
    return json.loads(schema, object_pairs_hook=lambda pairs: pairs)


def carried(value: object) -> bool:
    """Return whether JSON carries ``value`` to the judge as it is: NaN, infinities and -0.0 do not arrive."""
    if isinstance(value, float):
        return math.isfinite(value) and not (value == 0 and math.copysign(1, value) < 0)
    if isinstance(value, dict):
        return all(map(carried, value.values()))
    return all(map(carried, value)) if isinstance(value, list) else True


@pytest.mark.usefixtures("peer")
def test_avro_of_every_type_is_what_confluents_converter_writes(typed: Any) -> None:
    records = [
        (name, record, metadata)
        for name, some in typed_records(typed)
        for record in some
        for metadata in (True, False)
        if record.value is not None and carried(record.value)
    ]
    answers = ask(
        Question(
            converter=AVRO,
            data=with_schema(record),
            topic=f"topic {number}",
            config={"schema.registry.url": "mock://", "connect.meta.data": str(metadata).lower()},
        )
        for number, (_, record, metadata) in enumerate(records)
    )
    assert len(answers) == len(records) > 1200
    wrong = []
    for (name, record, metadata), answer in zip(records, answers, strict=True):
        assert record.value_schema is not None
        assert answer.data is not None, f"{name}: {answer.error}"
        assert answer.schema is not None
        made = avro_schema(record.value_schema, connect_metadata=metadata)
        if ordered(json.dumps(made)) != ordered(answer.schema):
            wrong.append(f"{name}: {json.dumps(made)} is not {answer.schema}")
        if avro_writer(record.value_schema)(record.value) != answer.data[5:]:
            wrong.append(f"{name}: bytes of {record.value['after']}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:10])


@pytest.mark.usefixtures("peer")
def test_decimals_as_numbers_are_those_of_the_json_converter(typed: Any) -> None:
    """In defaults, too: schemas are beside the values."""
    records = [
        record
        for name, some in typed_records(typed)
        for record in some
        if name.startswith(("numeric", "money")) and record.value is not None
    ]
    scale = {"parameters": (("scale", "3"), ("connect.decimal.precision", "30"))}
    number = of(
        "bytes", DECIMAL, 1, default=(-(10**20) - 5).to_bytes(9, "big", signed=True), **scale
    )
    row = of("struct", "row", fields=(Field("d", number),))
    records.append(ConnectRecord("t", None, None, row, {"d": b"\x05"}))
    given = {"decimal.format": "NUMERIC", "replace.null.with.default": "false"}
    answers = ask(
        Question(converter=JSON, data=with_schema(record), topic="t", config=given)
        for record in records
    )
    ours = JsonConverter(
        JsonConverterProperties.model_validate(given), ConverterContext(record_part="value")
    )
    assert len(answers) == len(records) > 20
    for record, answer in zip(records, answers, strict=True):
        assert answer.data is not None, answer.error
        found = ours.encoder("t", record.value_schema)(record.value)
        assert found is not None
        theirs, mine = (json.loads(each, parse_float=Decimal) for each in (answer.data, found))
        assert mine == theirs


@pytest.mark.usefixtures("peer")
def test_what_is_no_bytes_is_the_delegates_of_the_binary_converter() -> None:
    given = {
        "delegate.converter.type": "org.apache.kafka.connect.json.JsonConverter",
        "delegate.converter.type.schemas.enable": "false",
    }
    values = [
        (of("bytes", optional=True), b"\x00\xff"),
        (TEXT, "Ä"),
        (envelope.HEARTBEAT_VALUE, {"ts_ms": 7}),
        *((each.value_schema, each.value) for each in change_records(5, 10) if each.value),
    ]
    for more in ({}, {"delegate.converter.type.schemas.enable": "true"}):
        config = given | more
        answers = ask(
            Question(
                converter="io.debezium.converters.BinaryDataConverter",
                data=with_schema_of(schema, value), topic="t", config=config,
            )
            for schema, value in values
        )  # fmt: skip
        ours = BytesConverter(
            BytesProperties.model_validate(config), ConverterContext(record_part="value")
        )
        assert len(answers) == len(values) > 8
        for (schema, value), answer in zip(values, answers, strict=True):
            assert answer.data is not None, answer.error
            found = ours.encoder("t", schema)(value)
            assert found is not None
            if isinstance(value, bytes):
                assert found == answer.data
            else:
                assert ordered(found.decode()) == ordered(answer.data.decode())


@pytest.mark.usefixtures("peer")
def test_enhanced_support_changes_no_schema_and_no_byte_of_an_event(typed: Any) -> None:
    """Of an event's schemas it concerns none: enums are Debezium's, strings with their labels."""
    records = [
        (name, next(r for r in some if r.value is not None and carried(r.value)))
        for name, some in typed_records(typed)
        if any(r.value is not None and carried(r.value) for r in some)
    ]
    answers = ask(
        Question(
            converter=AVRO,
            data=with_schema(record),
            topic=f"enhanced topic {number}",
            config={"schema.registry.url": "mock://", "enhanced.avro.schema.support": "true"},
        )
        for number, (_, record) in enumerate(records)
    )
    of_avro = {
        "io.confluent.connect.avro.Enum": "Mood",
        "io.confluent.connect.avro.Enum.sad": "sad",
    }
    mood = {"type": "string", "optional": False, "parameters": of_avro}
    (control,) = ask(
        [
            Question(
                converter=AVRO,
                data=json.dumps({"schema": mood, "payload": "sad"}).encode(),
                topic="control",
                config={"schema.registry.url": "mock://", "enhanced.avro.schema.support": "true"},
            )
        ]
    )
    assert json.loads(control.schema or "{}")["type"] == "enum", "the setting has its effect"
    assert any("Enum" in (answer.schema or "") for answer in answers)
    for (name, record), answer in zip(records, answers, strict=True):
        assert record.value_schema is not None
        assert answer.schema is not None, f"{name}: {answer.error}"
        assert answer.data is not None
        made = avro_schema(record.value_schema, connect_metadata=True)
        assert ordered(json.dumps(made)) == ordered(answer.schema), name
        assert avro_writer(record.value_schema)(record.value) == answer.data[5:], name


class Unregistered(ProtobufConverter):
    """Protobuf without a registry: keeps the text that it would register."""

    registered = ""

    def _registered(self, topic: str, name: str | None, text: str) -> bytes:
        self.registered = text
        return b"\0\0\0\0\0"


PROTOBUF_OPTIONS: list[dict[str, str]] = [
    {},
    {"optional.for.nullables": "true"},
    {"wrapper.for.nullables": "true"},
    {"optional.for.nullables": "true", "wrapper.for.nullables": "true"},
    {"scrub.invalid.names": "true"},
]


def ends_a_day(value: Any) -> bool:
    """Return whether a time is 24:00, of which that converter makes 00:00 of the same day."""
    return bool(value["op"] == "c" and value["after"]["x"] == 86_400_000)


def read_schema(given: dict[str, Any]) -> Schema:
    """Return the schema that a converter's JSON describes."""
    items, keys, values = (
        read_schema(given[name]) if name in given else None for name in ("items", "keys", "values")
    )
    fields = tuple(Field(each["field"], read_schema(each)) for each in given.get("fields", ()))
    default = given.get("default")
    return Schema(
        kind=ConnectKind(given["type"]),
        optional=given.get("optional", False),
        name=given.get("name"),
        version=given.get("version"),
        parameters=tuple(given.get("parameters", {}).items()),
        doc=given.get("doc"),
        default=b64decode(default) if given["type"] == "bytes" and default else default,
        fields=fields,
        items=items,
        keys=keys,
        values=values,
    )


def protobuf(schema: Schema | None, options: dict[str, str], value: object) -> tuple[bytes, str]:
    """Return what waltap writes behind the schema's id, and the schema."""
    given = {"schema.registry.url": "http://nobody", **options}
    context = ConverterContext(record_part="value")
    converter = Unregistered(ProtobufProperties.model_validate(given), context)
    data = converter.encoder("t", schema)(value)
    assert data is not None
    return data[5:], converter.registered


def by_confluent(questions: list[Question]) -> list[Any]:
    try:
        return ask(questions, protobuf_class_path())
    except MissingProgram as reason:
        pytest.skip(f"what Confluent's Protobuf converter needs cannot be had: {reason}")


@pytest.mark.usefixtures("peer")
def test_protobuf_of_every_type_is_what_confluents_converter_writes(typed: Any) -> None:
    """Text of the schema and bytes; what that converter refuses is refused, too."""
    records = [
        (name, record, options)
        for precision in ("adaptive_time_microseconds", "connect")
        for name, some in typed_records(typed, **{"time.precision.mode": precision})
        for record in some
        for options in PROTOBUF_OPTIONS[: None if precision != "connect" else 1]
        if record.value is not None and carried(record.value) and not ends_a_day(record.value)
    ]
    answers = by_confluent(
        [
            Question(
                converter=PROTOBUF,
                data=with_schema(record),
                topic=f"topic-{number}",
                config={"schema.registry.url": "mock://", **options},
            )
            for number, (_, record, options) in enumerate(records)
        ]
    )
    assert len(answers) == len(records) > 3000
    wrong, refused = [], 0
    for (name, record, options), answer in zip(records, answers, strict=True):
        if answer.data is None:
            refused += 1
            with pytest.raises((SchemaMismatch, ConfigurationError)):
                protobuf(record.value_schema, options, record.value)
            continue
        data, text = protobuf(record.value_schema, options, record.value)
        if text != answer.schema:
            wrong.append(f"{name}: {text} is not {answer.schema}")
        if data != answer.data[5:]:
            wrong.append(f"{name}: {record.value['after']}: {data!r} is not {answer.data[5:]!r}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:10])
    assert refused < len(records) / 10


def plain(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "optional": False, **more}


def struct(name: str | None, *fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return plain("struct", name=name, fields=list(fields), **more)


def field(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"field": name, **schema}


TEXTS = {"type": "map", "optional": True, "keys": plain("string")}
SHAPES: list[tuple[dict[str, Any], Any]] = [
    (struct(None, field("id", plain("int32"))), {"id": 1}),
    (struct("my-shop.public.t.Key", field("id", plain("int32"))), {"id": 1}),
    (
        struct(
            "a.V",
            field("v", struct("x.v", field("i", plain("int32")))),
            field("w", struct("y.W", field("j", struct("x.Q", field("i", plain("int32")))))),
            field("z", struct("z.W", field("j", struct("x.Q", field("i", plain("int32")))))),
        ),
        {"v": {"i": 1}, "w": {"j": {"i": 2}}, "z": {"j": {"i": 3}}},
    ),
    (
        struct(
            "a.V",
            field("a", {**TEXTS, "values": plain("string", optional=True)}),
            field("b", {**TEXTS, "name": "x.my_map", "values": plain("int16")}),
            field("c", {"type": "array", "items": struct("q.I", field("n", plain("int8")))}),
        ),
        {"a": {"k": "v", "l": None, "m": ""}, "b": {"n": -1}, "c": [{"n": 1}, {"n": 0}]},
    ),
    (struct("a.V", field("d", plain("string", optional=True, default="abc"))), {"d": None}),
    (struct("a.V", field("1a", plain("int32")), field("_b-ü", plain("int32"))), {"1a": 1, "_b-ü": 2}),
    (struct("a.V"), {}),
    *((plain(kind), 5) for kind in ("int8", "int16", "int32", "int64", "float", "double")),
    (plain("boolean"), True),
    (plain("string", optional=True), "text"),
    (plain("bytes"), "AAE="),
]  # fmt: skip


@pytest.mark.usefixtures("peer")
def test_protobuf_of_other_shapes_is_what_confluents_converter_writes() -> None:
    cases = [(*shape, options) for shape in SHAPES for options in PROTOBUF_OPTIONS]
    answers = by_confluent(
        [
            Question(
                converter=PROTOBUF,
                data=json.dumps({"schema": schema, "payload": payload}).encode(),
                topic=f"topic-{number}",
                config={"schema.registry.url": "mock://", **options},
            )
            for number, (schema, payload, options) in enumerate(cases)
        ]
    )
    taken = 0
    for (schema, payload, options), answer in zip(cases, answers, strict=True):
        value = b64decode(payload) if schema["type"] == "bytes" else payload
        if answer.data is None:
            with pytest.raises((SchemaMismatch, ConfigurationError)):
                protobuf(read_schema(schema), options, value)
            continue
        taken += 1
        data, text = protobuf(read_schema(schema), options, value)
        assert text == answer.schema, (schema, options)
        assert data == answer.data[5:], (schema, options)
    assert taken > len(cases) * 0.9


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize(
    ("form", "every"),
    [
        ("json", 4),
        pytest.param("json", 1, marks=pytest.mark.exhaustive),
        ("avro in json", 100),
        ("avro", 60),
    ],
)
def test_cloud_events_are_those_of_debeziums_converter(
    typed: Any, registry: Registry, form: str, every: int
) -> None:
    config = {"json.schemas.enable": "true"}
    if "avro" in form:
        config |= {"avro.schema.registry.url": registry.url, "data.serializer.type": "avro"}
        config |= {"serializer.type": "avro"} if form == "avro" else {}
    records = [
        record
        for _, some in typed_records(typed)
        for record in some
        if record.value is not None and carried(record.value)
    ][::every]  # each asks the registry for schemas of its own
    topics = [f"{form} {number}".replace(" ", "_") for number in range(len(records))]
    answers = ask(
        Question(converter=CLOUD_EVENTS, data=with_schema(record), topic=topic, config=config)
        for record, topic in zip(records, topics, strict=True)
    )
    properties = CloudEventsProperties.model_validate(config)
    ours = CloudEventsConverter(properties, ConverterContext(record_part="value"))
    assert len(answers) == len(records) > 5
    for record, topic, answer in zip(records, topics, answers, strict=True):
        assert answer.data is not None, answer.error
        found = ours.encoder(topic, record.value_schema)(record.value)
        if form == "avro":
            assert found == answer.data
            continue
        assert found is not None
        assert ordered(found.decode()) == ordered(answer.data.decode())


METADATA: dict[str, dict[str, str]] = {
    "all": {"metadata.source": "header"},
    "generated": {
        "metadata.source": "HEADER,id:generate,type:generate",
        "json.schemas.enable": "true",
    },
    "traced": {
        "metadata.source": "header",
        "opentelemetry.tracing.attributes.enable": "true",
        "schema.data.name.source.header.enable": "true",
        "json.schemas.enable": "true",
    },
    "some": {
        "metadata.source": "value,id:header,type:generate,traceparent:header,dataSchemaName:header",
        "opentelemetry.tracing.attributes.enable": "true",
        "schema.data.name.source.header.enable": "true",
        "extension.attributes.enable": "false",
    },
    "named": {
        "metadata.source": "value,id:generate,type:header,dataSchemaName:header",
        "json.schemas.enable": "false",
    },
    "default": {
        "metadata.source": "value,id:generate,type:generate,traceparent:header,dataSchemaName:generate"
    },
}
"""Where CloudEvents get their attributes."""


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize("form", ["json", "json_avro", "avro"])
def test_attributes_of_cloud_events_come_from_headers(form: str, registry: Registry) -> None:
    avro = {"avro.schema.registry.url": registry.url, "data.serializer.type": "avro"}
    more = {"json": {}, "json_avro": avro, "avro": {**avro, "serializer.type": "avro"}}[form]
    row = of(
        "struct", "payload", optional=True,
        fields=(Field("someField1", TEXT), Field("n", of("int32", optional=True))),
    )  # fmt: skip
    asked = []
    for name, given in METADATA.items():
        # the events have no schema in JSON where the data is Avro
        config = {key: value for key, value in given.items() if not (more and "json" in key)}
        for number, record in enumerate(change_records(3, 12)):
            if record.value is None or "before" not in record.value:
                continue
            block = record.value["transaction"]
            headers: dict[str, tuple[Schema, Any]] = {
                "id": (of("string", "io.debezium.data.Uuid", 1), f"id {number}"),
                "type": (MAYBE_TEXT, "UserCreated"),
                "traceparent": (TEXT, f"00-{number}"),
                "dataSchemaName": (TEXT, f"of.{form}.Data{number % 3}"),
            }
            if config["metadata.source"].lower().startswith("header"):
                headers |= {"source": (SOURCE, record.value["source"]), "op": (TEXT, "c")}
                if block is not None:
                    headers["transaction"] = (envelope.TRANSACTION_BLOCK, block)
                record = ConnectRecord(
                    "t", None, None, row, {"someField1": "Ä", "n": number if number % 2 else None}
                )
            made = tuple((key, *held) for key, held in headers.items())
            topic = f"headers_{form}_{name}_{number}"
            asked.append((topic, config | more, msgspec.structs.replace(record, headers=made)))
    answers = ask(
        Question(
            converter=CLOUD_EVENTS, data=with_schema(record), topic=topic, config=config,
            headers={key: with_schema_of(schema, held) for key, schema, held in record.headers},
        )
        for topic, config, record in asked
    )  # fmt: skip
    assert len(answers) == len(asked) > 30
    for (topic, config, record), answer in zip(asked, answers, strict=True):
        assert answer.data is not None, f"{config}: {answer.error}"
        properties = CloudEventsProperties.model_validate(config)
        ours = CloudEventsConverter(properties, ConverterContext(record_part="value"))
        write = ours.headed(topic, record.value_schema)
        assert write is not None
        found, _ = write(record.value, record.headers)
        assert found is not None
        if form == "avro":
            assert found == answer.data, config
            continue
        assert ordered(found.decode()) == ordered(answer.data.decode()), config


def recorded(corpus: str) -> list[tuple[str, bool, dict[str, Any], Any]]:
    """Return (topic, whether it is a key, schema, payload) of what Debezium wrote for a corpus, once each.

    The recording has words in the place of times and positions: they are numbers again.
    """
    last: dict[tuple[str, str], Any] = {}
    found: dict[str, tuple[str, bool, dict[str, Any], Any]] = {}
    lines = CORPORA.joinpath(corpus, "expected.schemas.jsonl").read_text().split("\n")
    for record in map(json.loads, filter(None, lines)):
        for record_part in ("key", "value"):
            both = record.get(record_part)
            if not isinstance(both, dict) or "payload" not in both:
                continue
            place = record["topic"], record_part
            if both["schema"] == SAME:
                both["schema"] = last[place]
            last[place] = both["schema"]
            payload = filled(both["schema"], both["payload"])
            made = record["topic"], record_part == "key", both["schema"], payload
            found[json.dumps(made)] = made
    return list(found.values())


def filled(schema: dict[str, Any], value: Any) -> Any:
    """Return a payload with numbers for the words of the canonical form."""
    kind = schema["type"]
    if kind in ("int32", "int64") and isinstance(value, str):
        return 1_700_000_000
    if kind == "string" and isinstance(value, list | dict):  # the pair of positions
        return json.dumps(value)
    if kind == "struct" and isinstance(value, dict):
        return {f["field"]: filled(f, value.get(f["field"])) for f in schema["fields"]}
    return value


def connect(schema: Schema, value: Any) -> Any:
    """Return the Connect value of a payload."""
    if value is None:
        return None
    match schema.kind:
        case ConnectKind.BYTES:
            return b64decode(value)
        case ConnectKind.STRUCT:
            return {f.name: connect(f.schema, value[f.name]) for f in schema.fields}
        case ConnectKind.ARRAY:
            assert schema.items is not None
            return [connect(schema.items, each) for each in value]
    return value


@pytest.mark.usefixtures("peer")
def test_what_debezium_recorded_is_avro_and_protobuf_as_confluents_converters_write_it() -> None:
    """Of the corpora that were recorded with schemas."""
    corpora = sorted(path.parent.name for path in CORPORA.glob("*/expected.schemas.jsonl"))
    assert {"types_default", "toast", "oddities"} <= set(corpora)
    records = [record for corpus in corpora for record in recorded(corpus)]
    questions = [
        Question(
            converter=converter,
            data=json.dumps({"schema": schema, "payload": payload}).encode(),
            topic=f"topic-{number}",
            key=key,
            config={"schema.registry.url": "mock://"},
        )
        for converter in (AVRO, PROTOBUF)
        for number, (_, key, schema, payload) in enumerate(records)
    ]
    answers, compared = by_confluent(questions), 0
    for question, answer in zip(questions, answers, strict=True):
        both = json.loads(question.data)
        schema = read_schema(both["schema"])
        value = connect(schema, both["payload"])
        if answer.data is None:
            with pytest.raises((SchemaMismatch, ConfigurationError)):
                avro(schema, value) if question.converter == AVRO else protobuf(schema, {}, value)
            continue
        assert answer.schema is not None
        compared += 1
        if question.converter == PROTOBUF:
            assert protobuf(schema, {}, value) == (answer.data[5:], answer.schema)
        else:
            data, text = avro(schema, value)
            assert (data, ordered(text)) == (answer.data[5:], ordered(answer.schema))
    assert compared > len(records)


def avro(schema: Schema, value: Any) -> tuple[bytes, str]:
    """Return what waltap writes behind the schema's id, and the schema."""
    return avro_writer(schema)(value), json.dumps(avro_schema(schema))
