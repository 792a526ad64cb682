"""What waltap's formats write against what Kafka Connect's converters write of the same values."""

import json
import math
from base64 import b64decode
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from tests.differential.converters import Answer, Question, ask, protobuf_class_path
from tests.differential.corpus import CORPORA
from tests.differential.normalise import SAME
from tests.harness.change_records import SOURCE, change_records
from tests.harness.schemas import MAYBE_TEXT, TEXT, of
from tests.harness.servers.jars import MissingProgram
from tests.harness.servers.registry import Registry
from tests.harness.typed_records import (
    UnregisteredAvro,
    typed_records,
    with_schema,
    with_schema_of,
)
from tests.harness.typed_values import typed  # noqa: F401 - a fixture

from waltap.changes.mapping import envelope
from waltap.changes.mapping.connect_schema import (
    DATE,
    DECIMAL,
    TIMESTAMP,
    ConnectKind,
    Field,
    Schema,
)
from waltap.encoders.format.converter import ConverterContext, SchemaMismatch
from waltap.encoders.format.record_transform import ConnectHeader, ConnectRecord
from waltap.encoders.json.converter import JsonConverter, JsonConverterProperties
from waltap.errors import ConfigurationError
from waltap_formats.avro.schema import avro_schema
from waltap_formats.cloudevents import CloudEventsConverter
from waltap_formats.plain import (
    BytesConverter,
    BytesProperties,
    StringConverter,
    StringProperties,
)
from waltap_formats.properties import CloudEventsProperties, ProtobufProperties
from waltap_formats.protobuf.converter import ProtobufConverter

CLOUD_EVENTS = "io.debezium.converters.CloudEventsConverter"
BINARY = "io.debezium.converters.BinaryDataConverter"
JSON = "org.apache.kafka.connect.json.JsonConverter"
AVRO = "io.confluent.connect.avro.AvroConverter"
PROTOBUF = "io.confluent.connect.protobuf.ProtobufConverter"
STRING = "org.apache.kafka.connect.storage.StringConverter"
CONTEXT = ConverterContext(record_part="value")


def ordered(document: str | bytes) -> object:
    """Return a document with the order of its members, which registries take as a difference."""
    return json.loads(document, object_pairs_hook=lambda pairs: pairs)


def carried(value: object) -> bool:
    """Return whether JSON carries ``value`` to the judge as it is: NaN, infinities and -0.0 do not arrive."""
    if isinstance(value, float):
        return math.isfinite(value) and not (value == 0 and math.copysign(1, value) < 0)
    if isinstance(value, dict):
        return all(map(carried, value.values()))
    return all(map(carried, value)) if isinstance(value, list) else True


def by_confluent(questions: Sequence[Question]) -> list[Any]:
    try:
        return ask(questions, protobuf_class_path())
    except MissingProgram as reason:
        pytest.skip(f"what Confluent's Protobuf converter needs cannot be had: {reason}")


@dataclass(frozen=True, kw_only=True)
class Case(Question):
    """A value for Kafka Connect's converter and ours; ``held``: its headers with their schemas."""

    topic: str = "topic"
    schema: Schema | None
    value: Any
    held: tuple[ConnectHeader, ...] = ()


def case(converter: str, record: ConnectRecord, **more: Any) -> Case:
    """Return the case of a record's value; ``config`` needs no registry where a converter has one of its own."""
    url = {"schema.registry.url": "mock://"} if "confluent" in converter else {}
    given = {"data": with_schema(record), **more, "config": {**url, **more.get("config", {})}}
    headers = {name: with_schema_of(schema, held) for name, schema, held in record.headers}
    return Case(
        converter=converter, schema=record.value_schema, value=record.value,
        headers=headers, held=record.headers, **given,
    )  # fmt: skip


def of_shape(converter: str, schema: dict[str, Any], payload: Any, **more: Any) -> Case:
    """Return the case of a payload, by its schema in JSON."""
    data = json.dumps({"schema": schema, "payload": payload}).encode()
    made = read_schema(schema)
    record = ConnectRecord("t", None, None, made, connect(made, payload))
    return case(converter, record, data=data, **more)


Written = tuple[object, ...]


def compare(
    cases: Iterable[Case],
    ours: Callable[[Case], Written],
    theirs: Callable[[Answer], Written],
    *,
    more_than: int,
    refused: float = 0,
) -> None:
    """Have both write every case. What Connect's refuse, up to this share, is refused by ours, too."""
    given = [replace(each, topic=f"{each.topic}_{n}") for n, each in enumerate(cases)]
    answers = by_confluent(given) if given[0].converter == PROTOBUF else ask(given)
    assert len(answers) == len(given) > more_than
    wrong, left = [], 0
    for each, answer in zip(given, answers, strict=True):
        if answer.data is None:
            left += 1
            assert refused, f"{each}: {answer.error}"
            with pytest.raises((SchemaMismatch, ConfigurationError)):
                ours(each)
        elif (found := ours(each)) != (expected := theirs(answer)):
            wrong.append(f"{each}: {found} is not {expected}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:10])
    assert left <= len(given) * refused


def typed_values(typed: Any, **capture: str) -> list[tuple[str, ConnectRecord]]:
    """Return (type, record) of every type's values that JSON carries to the judge."""
    return [
        (name, record)
        for name, some in typed_records(typed, **capture)
        for record in some
        if record.value is not None and carried(record.value)
    ]


def plain(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "optional": False, **more}


def struct(name: str | None, *fields: dict[str, Any], **more: Any) -> dict[str, Any]:
    return plain("struct", name=name, fields=list(fields), **more)


def field(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"field": name, **schema}


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


# --- Avro -------------------------------------------------------------------------------------------


def avro(one: Case) -> Written:
    """Return what waltap writes behind the schema's id, and the schema."""
    assert one.schema is not None
    metadata = (one.config or {}).get("connect.meta.data") != "false"
    made = avro_schema(one.schema, connect_metadata=metadata)
    data = UnregisteredAvro(straight=False).encoder("t", one.schema)(one.value) or b""
    return data[5:], ordered(json.dumps(made))


def avro_of(answer: Answer) -> Written:
    return (answer.data or b"")[5:], ordered(answer.schema or "")


@pytest.mark.usefixtures("peer")
def test_avro_of_every_type_is_what_confluents_converter_writes(typed: Any) -> None:
    cases = [
        case(AVRO, record, config={"connect.meta.data": metadata})
        for _, record in typed_values(typed)
        for metadata in ("true", "false")
    ]
    compare(cases, avro, avro_of, more_than=1200)


@pytest.mark.usefixtures("peer")
def test_enhanced_support_changes_no_schema_and_no_byte_of_an_event(typed: Any) -> None:
    """Of an event's schemas it concerns none: enums are Debezium's, strings with their labels."""
    config = {"enhanced.avro.schema.support": "true"}
    enum = "io.confluent.connect.avro.Enum"
    mood = plain("string", parameters={enum: "Mood", f"{enum}.sad": "sad"})
    (answer,) = ask([of_shape(AVRO, mood, "sad", config=config, topic="control")])
    assert json.loads(answer.schema or "{}")["type"] == "enum", "the setting has its effect"
    firsts = dict(reversed(typed_values(typed)))
    cases = [case(AVRO, each, config=config, topic="enhanced") for each in firsts.values()]
    assert any("Enum" in str(avro(each)) for each in cases)
    compare(cases, avro, avro_of, more_than=50)


# --- JSON and bytes ---------------------------------------------------------------------------------


def in_order(data: bytes | None) -> Written:
    return (ordered(data or b""),)


@pytest.mark.usefixtures("peer")
def test_decimals_as_numbers_are_those_of_the_json_converter(typed: Any) -> None:
    """In defaults, too: schemas are beside the values."""
    scale = {"parameters": (("scale", "3"), ("connect.decimal.precision", "30"))}
    number = of(
        "bytes", DECIMAL, 1, default=(-(10**20) - 5).to_bytes(9, "big", signed=True), **scale
    )
    row = of("struct", "row", fields=(Field("d", number),))
    records = [
        record
        for name, some in typed_records(typed)
        for record in some
        if name.startswith(("numeric", "money")) and record.value is not None
    ]
    records.append(ConnectRecord("t", None, None, row, {"d": b"\x05"}))
    config = {"decimal.format": "NUMERIC", "replace.null.with.default": "false"}
    properties = JsonConverterProperties.model_validate(config)
    converter = JsonConverter(properties, ConverterContext(record_part="value"))

    def exact(data: bytes | None) -> Written:
        return (json.loads(data or b"", parse_float=Decimal),)

    compare(
        (case(JSON, each, config=config) for each in records),
        lambda each: exact(converter.encoder("t", each.schema)(each.value)),
        lambda answer: exact(answer.data),
        more_than=20,
    )


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize("schemas", ["false", "true"])
def test_what_is_no_bytes_is_the_delegates_of_the_binary_converter(schemas: str) -> None:
    delegate = "delegate.converter.type"
    config = {delegate: JSON, f"{delegate}.schemas.enable": schemas}
    converter = BytesConverter(
        BytesProperties.model_validate(config), ConverterContext(record_part="value")
    )
    values = [
        (of("bytes", optional=True), b"\x00\xff"),
        (TEXT, "Ä"),
        (envelope.HEARTBEAT_VALUE, {"ts_ms": 7}),
    ]
    records = [ConnectRecord("t", None, None, *each) for each in values]
    records += [each for each in change_records(5, 10) if each.value]

    def read(data: bytes | None) -> Written:
        return (data,) if data == b"\x00\xff" else in_order(data)

    compare(
        (case(BINARY, each, config=config) for each in records),
        lambda each: read(converter.encoder("t", each.schema)(each.value)),
        lambda answer: read(answer.data),
        more_than=8,
    )


# --- Protobuf ---------------------------------------------------------------------------------------


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


def protobuf(one: Case) -> Written:
    """Return what waltap writes behind the schema's id, and the schema."""
    given = {**(one.config or {}), "schema.registry.url": "http://nobody"}
    context = ConverterContext(record_part="value")
    converter = Unregistered(ProtobufProperties.model_validate(given), context)
    data = converter.encoder("t", one.schema)(one.value)
    assert data is not None
    return data[5:], converter.registered


def protobuf_of(answer: Answer) -> Written:
    return (answer.data or b"")[5:], answer.schema


@pytest.mark.usefixtures("peer")
def test_protobuf_of_every_type_is_what_confluents_converter_writes(typed: Any) -> None:
    """Text of the schema and bytes; what that converter refuses is refused, too."""
    cases = [
        case(PROTOBUF, record, config=options)
        for precision, count in (("adaptive_time_microseconds", None), ("connect", 1))
        for _, record in typed_values(typed, **{"time.precision.mode": precision})
        for options in PROTOBUF_OPTIONS[:count]
        if not ends_a_day(record.value)
    ]
    compare(cases, protobuf, protobuf_of, more_than=3000, refused=0.1)


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
            field("d", {**TEXTS, "name": "x.mine", "values": plain("int16")}),
            field("c", {"type": "array", "items": struct("q.I", field("n", plain("int8")))}),
        ),
        {
            "a": {"k": "v", "l": None, "m": ""},
            "b": {"n": -1},
            "c": [{"n": 1}, {"n": 0}],
            "d": {"o": 2},
        },
    ),
    (
        struct("a.V", field("a", plain("array", items={**TEXTS, "values": plain("string")}))),
        {"a": [{"k": "v"}]},
    ),
    (struct("a.V", field("t", plain("int64", name=TIMESTAMP, version=1, default=-(10**15)))), {"t": 1}),
    (struct("a.V", field("f", plain("float", default=0.10000000149011612))), {"f": 0.5}),
    (struct("a.V", field("d", plain("string", optional=True, default="abc"))), {"d": None}),
    (struct("a.V", field("1a", plain("int32")), field("_b-ü", plain("int32"))), {"1a": 1, "_b-ü": 2}),
    (struct("a.V"), {}),
    *((plain(kind), 5) for kind in ("int8", "int16", "int32", "int64", "float", "double")),
    (plain("boolean"), True),
    (plain("string", optional=True), "text"),
    (plain("bytes"), "AAE="),
    (plain("bytes", optional=True), "AAE="),
]  # fmt: skip


@pytest.mark.usefixtures("peer")
def test_protobuf_of_other_shapes_is_what_confluents_converter_writes() -> None:
    cases = [
        of_shape(PROTOBUF, *shape, config=options)
        for shape in SHAPES
        for options in PROTOBUF_OPTIONS
    ]
    compare(cases, protobuf, protobuf_of, more_than=60, refused=0.2)


@pytest.mark.usefixtures("peer")
def test_avro_of_other_shapes_is_what_confluents_converter_writes() -> None:
    compare((of_shape(AVRO, *shape) for shape in SHAPES), avro, avro_of, more_than=15, refused=0.1)


@pytest.mark.usefixtures("peer")
def test_dates_are_printed_as_java_prints_them() -> None:
    days = (0, -1, -141_427, -141_428, -719_162, -719_165, 3_000_000)
    compare(
        [
            *(of_shape(STRING, plain("int32", name=DATE, version=1), day) for day in days),
            of_shape(STRING, plain("int64", name=TIMESTAMP, version=1), -(10**14) - 1),
        ],
        lambda each: (
            StringConverter(StringProperties(), CONTEXT).encoder("t", each.schema)(each.value),
        ),
        lambda answer: (answer.data,),
        more_than=7,
    )


# --- CloudEvents ------------------------------------------------------------------------------------

FORMS: dict[str, dict[str, str]] = {
    "json": {},
    "json_avro": {"data.serializer.type": "avro"},
    "avro": {"data.serializer.type": "avro", "serializer.type": "avro"},
}


def compare_events(form: str, cases: Iterable[Case], *, more_than: int) -> None:
    """Compare events; those in Avro by their bytes."""

    def ours(one: Case) -> Written:
        properties = CloudEventsProperties.model_validate(one.config)
        converter = CloudEventsConverter(properties, ConverterContext(record_part="value"))
        if one.held:
            write = converter.headed(one.topic, one.schema)
            assert write is not None
            return read(write(one.value, one.held)[0])
        return read(converter.encoder(one.topic, one.schema)(one.value))

    def read(data: bytes | None) -> Written:
        return (data,) if form == "avro" else in_order(data)

    compare(cases, ours, lambda answer: read(answer.data), more_than=more_than)


def config_of(form: str, registry: Registry) -> dict[str, str]:
    return FORMS[form] and {"avro.schema.registry.url": registry.url, **FORMS[form]}


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize(
    ("form", "every"),
    [
        ("json", 4),
        pytest.param("json", 1, marks=pytest.mark.exhaustive),
        ("json_avro", 100),
        ("avro", 60),
    ],
)
def test_cloud_events_are_those_of_debeziums_converter(
    typed: Any, registry: Registry, form: str, every: int
) -> None:
    """Each asks the registry for schemas of its own."""
    config = {"json.schemas.enable": "true", **config_of(form, registry)}
    some = typed_values(typed)[::every]
    cases = (case(CLOUD_EVENTS, each, config=config, topic=form) for _, each in some)
    compare_events(form, cases, more_than=5)


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
@pytest.mark.parametrize("form", FORMS)
def test_attributes_of_cloud_events_come_from_headers(form: str, registry: Registry) -> None:
    more = config_of(form, registry)
    row = of(
        "struct", "payload", optional=True,
        fields=(Field("someField1", TEXT), Field("n", of("int32", optional=True))),
    )  # fmt: skip
    cases = []
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
                value = {"someField1": "Ä", "n": number if number % 2 else None}
                record = ConnectRecord("t", None, None, row, value)
            made = tuple((key, *held) for key, held in headers.items())
            record = msgspec.structs.replace(record, headers=made)
            topic = f"headers_{form}_{name}"
            cases.append(case(CLOUD_EVENTS, record, config=config | more, topic=topic))
    compare_events(form, cases, more_than=30)


# --- what Debezium recorded -------------------------------------------------------------------------


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


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize(
    ("converter", "ours", "theirs"),
    [(AVRO, avro, avro_of), (PROTOBUF, protobuf, protobuf_of)],
    ids=["avro", "protobuf"],
)
def test_what_debezium_recorded_is_what_confluents_converters_write(
    converter: str, ours: Callable[[Case], Written], theirs: Callable[[Answer], Written]
) -> None:
    """Of the corpora that were recorded with schemas."""
    corpora = sorted(path.parent.name for path in CORPORA.glob("*/expected.schemas.jsonl"))
    assert {"types_default", "toast", "oddities"} <= set(corpora)
    cases = [
        of_shape(converter, schema, payload, key=key, topic="recorded")
        for corpus in corpora
        for _, key, schema, payload in recorded(corpus)
    ]
    compare(cases, ours, theirs, more_than=100, refused=0.25)
