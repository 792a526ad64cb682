"""Records of tables that a seed makes: schemas of every kind, rows with nulls and defaults, every operation."""

import random
from collections.abc import Sequence
from typing import Any

import msgspec
from tests.harness.schemas import BYTES, INT32, INT64, MAYBE_TEXT, TEXT, array, mapped, of, struct

from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.mapping import envelope
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import (
    ConnectHeader,
    ConnectRecord,
    RecordTransformContext,
)
from waltap_transforms.debezium import DEBEZIUM

PIPELINE = RecordTransformContext(
    label="t", capture=CaptureRules(CaptureProperties.model_validate({"topic.prefix": "server"}))
)
"""What transforms know of a pipeline."""

NOW = 1_767_225_601_123
SOURCE = envelope.source_schema("postgresql")
MESSAGE = envelope.message_value_schema("postgresql", SOURCE, binary=True)
MESSAGE_KEY = envelope.message_key_schema("postgresql")

_DATA, _TIME = "io.debezium.data", "io.debezium.time"
_CONNECT = "org.apache.kafka.connect.data"
_PRECISION = {"parameters": (("scale", "2"), ("connect.decimal.precision", "9"))}
_POINTS = (
    ("0101000000000000000000f03f0000000000000040", 4326),
    ("0101000020e6100000000000000000f03f0000000000000040", 4326),
    ("0000000002000000023ff0000000000000400000000000000040080000000000003ff0000000000000", 1),
)
_JSON, _UUID = of("string", f"{_DATA}.Json", 1), of("string", f"{_DATA}.Uuid", 1)
_GEOMETRY = struct(
    {"wkb": BYTES, "srid": of("int32", optional=True)},
    f"{_DATA}.geometry.Geometry",
    version=1,
    doc="Geometry",
)
_SPARSE = struct(
    {"dimensions": of("int16"), "vector": mapped(of("int16"), of("float64"))},
    f"{_DATA}.SparseDoubleVector",
    version=1,
)
_ZONED = (
    "2026-01-01T00:00:00.123456Z",
    "1970-07-01T12:00:00Z",
    "2026-03-29T02:30:00.5+01:00",
    "1850-01-01T00:00:00Z",
    "+12026-07-01T00:00:00Z",
    "-0044-03-15T12:00:00Z",
)
_MICROS = (0, -1, 1767225601123456, 1774751400000000, -62135596800000001)
_KINDS: tuple[tuple[Schema, tuple[Any, ...]], ...] = (
    (of("int16"), (0, -1, 32767)),
    (INT32, (0, 7, -2147483648)),
    (INT64, (0, 9007199254740993, -9223372036854775808)),
    (of("float32"), (0.5, -1.25, 3.0)),
    (of("float64"), (0.1, -1e300, 2.0)),
    (of("boolean"), (True, False)),
    (TEXT, ("", "some", "Ä\n\U0001f600", "  ")),
    (BYTES, (b"", b"\x00\xff", b"{}")),
    (_JSON, ("{}", '{"a": [1]}')),
    (_UUID, ("a-b",)),
    (of("bytes", f"{_CONNECT}.Decimal", 1, **_PRECISION), (b"\x00", b"\x04\xd2", b"\xff")),
    (of("int64", f"{_TIME}.MicroTimestamp", 1), _MICROS),
    (of("int64", f"{_TIME}.Timestamp", 1), (0, 1767225601123)),
    (of("int64", f"{_TIME}.NanoTimestamp", 1), (0, 10**18 + 7)),
    (of("string", f"{_TIME}.ZonedTimestamp", 1), _ZONED),
    (of("int32", f"{_TIME}.Date", 1), (0, 20454)),
    (array(of("int32", optional=True)), ([], [1, None, 3])),
    (mapped(TEXT, MAYBE_TEXT), ({}, {"a": "b", "c": None})),
    (_GEOMETRY, tuple({"wkb": bytes.fromhex(wkb), "srid": srid} for wkb, srid in _POINTS)),
    (array(of("float64"), f"{_DATA}.DoubleVector", version=1), ([], [1.0, -2.5e-7, 1e10])),
    (array(of("float32"), f"{_DATA}.FloatVector", version=1), ([0.5, 3.0, 1.0e10],)),
    (_SPARSE, ({"dimensions": 25, "vector": {2: 1.0, 11: 0.5}},)),
    (of("string", f"{_TIME}.ZonedTime", 1), ("10:00:00Z", "23:30:00.5Z")),
    (of("int64", f"{_CONNECT}.Timestamp", 1), (0, 1774751400000)),
)
STRUCTURED = (ConnectKind.ARRAY, ConnectKind.MAP, ConnectKind.STRUCT)


def structures(name: str, columns: Sequence[Field]) -> Schema:
    row = envelope.row_schema(f"server.shop.{name}.Value", columns)
    return envelope.envelope_schema(f"server.shop.{name}.Envelope", row, SOURCE)


def change_records(seed: int, count: int) -> list[ConnectRecord]:
    """Return ``count`` records, or a few more, of tables, messages and heartbeats that ``seed`` makes."""
    chance = random.Random(seed)
    tables = [_table(chance, f"t{number}") for number in range(chance.randint(1, 3))]
    records: list[ConnectRecord] = []
    while len(records) < count:
        if chance.random() < 0.1:
            records.append(_apart(chance))
        else:
            records += _change(chance, *chance.choice(tables))
    return records


PAYLOADS = (
    None, "", " \n ", "text", "{", "{}", '{"a":1}', '{"a":1,"b":{"c":"x","d":[1,2]},"n":null}',
    '{"a":5000000000,"b":1.5,"c":true,"d":"","e":[]}', '{"e":[{"x":1},{"x":2,"y":"z"},{"x":3}]}',
    '{"e":[{"x":null},{"x":{"y":1}}],"f":[null,1]}', '{"e":[1,"x"]}', '{"e":[1,5000000000]}',
    '{"m":[["a"],["b","c"],[]]}', '{"e":[null]}', '{"some-name":{"with space":1},"1":2}',
    '{"a":1} behind', '{"a":1,"a":"twice"}', "[", "{'a':1}",
)  # fmt: skip


def outbox_records(seed: int, count: int) -> list[ConnectRecord]:
    """Return ``count`` records of an outbox table, and a few that are no changes of it."""
    chance = random.Random(seed)
    key, value = _outbox(chance)
    records: list[ConnectRecord] = []
    while len(records) < count:
        if chance.random() < 0.1:
            records.append(_apart(chance))
            continue
        row = value.fields[0].schema
        (made, *rest) = _change(chance, "outbox", key, value, ops="ccccrrud")
        if made.value["after"] is not None:
            made.value["after"] |= {
                "aggregatetype": chance.choice(["order", "customer", "x y"]),
                "payload": _payload(chance, row),
                "n": chance.choice([0, 1, 2]),
            }
        records += [made, *rest]
    return records


def _payload(chance: random.Random, row: Schema) -> str | bytes | None:
    schema = next(field.schema for field in row.fields if field.name == "payload")
    payload = chance.choice(PAYLOADS if schema.optional else PAYLOADS[1:])
    if schema.kind is ConnectKind.BYTES and payload is not None:
        return payload.encode()
    return payload


def _outbox(chance: random.Random) -> tuple[Schema, Schema]:
    payload = chance.choice([TEXT, TEXT, _JSON])
    if chance.random() < 0.2:
        payload = BYTES
    optional = chance.random() < 0.7
    unit = chance.choice(["Timestamp", "MicroTimestamp", "NanoTimestamp"])
    at = of("int64", f"{_TIME}.{unit}", 1, optional=chance.random() < 0.5)
    columns = [
        Field("id", _UUID),
        Field("aggregatetype", TEXT),
        Field("aggregateid", _text(chance)),
        Field("kind", TEXT),
        Field("payload", msgspec.structs.replace(payload, optional=optional)),
        Field("at", at),
        Field("n", INT32),
    ]
    return envelope.key_schema("server.shop.outbox.Key", columns[:1]), structures("outbox", columns)


def _table(chance: random.Random, name: str) -> tuple[str, Schema | None, Schema]:
    columns = [Field("id", INT32), Field("kind", _text(chance))]
    for number in range(chance.randint(0, 8)):
        columns.append(Field(f"c{number}", _column(chance, *chance.choice(_KINDS))))
    keys = chance.choice([columns[:1], columns[:1], columns[:2], []])
    key = envelope.key_schema(f"server.shop.{name}.Key", keys) if keys else None
    return name, key, structures(name, columns)


def _text(chance: random.Random) -> Schema:
    return _column(chance, TEXT, ("a", "b"))


def _column(chance: random.Random, schema: Schema, values: tuple[Any, ...]) -> Schema:
    optional = chance.random() < 0.6
    default = None
    if schema.kind not in STRUCTURED and chance.random() < 0.4:
        default = chance.choice(values)
    return msgspec.structs.replace(schema, optional=optional, default=default)


def _change(
    chance: random.Random, name: str, key: Schema | None, value: Schema, ops: str = "ccuudrt"
) -> list[ConnectRecord]:
    row = value.fields[0].schema
    op = chance.choice(ops)
    before = _row(chance, row) if op == "d" or (op == "u" and chance.random() < 0.6) else None
    after = _row(chance, row) if op in "cur" else None
    if op == "u" and before is not None and after is not None:
        after.update({field: before[field] for field in before if chance.random() < 0.5})
    shown = after if after is not None else before
    identity = None
    if key is not None and shown is not None:
        identity = {field.name: shown[field.name] for field in key.fields}
    event = {
        "before": before,
        "after": after,
        "source": _source(chance, name),
        "transaction": _block(chance),
        "op": op,
        "ts_ms": NOW,
        "ts_us": NOW * 1000 + 1,
        "ts_ns": NOW * 1_000_000 + 1001,
    }
    topic, schema = f"server.shop.{name}", key if identity is not None else None
    headers = _headers(chance, row)
    made = [ConnectRecord(topic, schema, identity, value, event, headers)]
    if op == "d":
        made.append(ConnectRecord(topic, schema, identity, None, None, headers))
    return made


def _row(chance: random.Random, schema: Schema) -> dict[str, Any]:
    return {field.name: _value(chance, field.schema) for field in schema.fields}


def _value(chance: random.Random, schema: Schema) -> Any:
    if schema.optional and chance.random() < 0.4:
        return None
    for known, values in _KINDS:
        if (known.kind, known.name) == (schema.kind, schema.name):
            return chance.choice(values)
    raise AssertionError(schema)


def _source(chance: random.Random, table: str) -> dict[str, Any]:
    return {
        "version": "waltap 0.1.0",
        "connector": "postgresql",
        "name": "server",
        "ts_ms": NOW - 5,
        "snapshot": chance.choice([None, "true", "last"]),
        "db": "shop",
        "sequence": '["1","2"]',
        "ts_us": NOW * 1000 - 5000,
        "ts_ns": NOW * 1_000_000 - 5_000_000,
        "schema": "shop",
        "table": table,
        "txId": chance.choice([None, 7]),
        "lsn": chance.randint(1, 10**9),
        "xmin": None,
        "origin": None,
        "origin_lsn": None,
    }


def _block(chance: random.Random) -> dict[str, Any] | None:
    if chance.random() < 0.5:
        return None
    return {"id": "7:99", "total_order": 3, "data_collection_order": 1}


def _headers(chance: random.Random, row: Schema) -> tuple[ConnectHeader, ...]:
    headers: list[ConnectHeader] = []
    if chance.random() < 0.5:
        headers.append(("__debezium.context.taskId", envelope.HEADER, "0"))
    if chance.random() < 0.4:
        names = [field.name for field in row.fields if chance.random() < 0.3]
        schema = array(MAYBE_TEXT, optional=True)
        headers.append(("Dropped", schema, names))
    return tuple(headers)


def _apart(chance: random.Random) -> ConnectRecord:
    """Return a record that is no change: a heartbeat, or a logical message."""
    if chance.random() < 0.5:
        return ConnectRecord(
            "__debezium-heartbeat.server", envelope.HEARTBEAT_KEY, {"serverName": "server"},
            envelope.HEARTBEAT_VALUE, {"ts_ms": NOW}, partition=0,
        )  # fmt: skip
    value = {
        "op": "m",
        "ts_ms": NOW,
        "source": _source(chance, ""),
        "transaction": None,
        "message": {"prefix": "p", "content": b'{"id": 1, "name": "x"}'},
    }
    return ConnectRecord("server.message", MESSAGE_KEY, {"prefix": "p"}, MESSAGE, value)


def transform(name: str, context: RecordTransformContext = PIPELINE, /, **given: str) -> Any:
    """Return one of Debezium's transforms, by our name; properties are given with __ for the dot."""
    (spec,) = (each for each in DEBEZIUM if each.name == name)
    config = {key.replace("__", "."): value for key, value in given.items()}
    properties = None if spec.properties is None else spec.properties.model_validate(config)
    return spec.factory(properties, context)
