"""Random records and properties for each of Kafka Connect's transforms, by a seed."""

import json
import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from tests.differential.connect_transforms.form import written_record
from tests.differential.connect_transforms.judge import Question

from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import ConnectRecord

PACKAGE = "org.apache.kafka.connect.transforms."
DATA = "org.apache.kafka.connect.data."
NAMES = ("id", "a", "b", "note", "when", "price", "flag", "x.y", "at", "raw", "tags", "inner")
DATES = (
    "yyyy-MM-dd", "yyyy-MM-dd HH:mm:ss", "yyyy-MM-dd'T'HH:mm:ss.SSS'Z'", "dd/MM/yy", "yyyyMMddHHmmss",
    "EEE, d MMM yyyy h:mm a", "HH:mm:ss.SSS", "yyyy-DDD", "MMMM d, yyyy G", "YYYY-'W'ww-u", "K:mm aa z",
    "yyyy.MM.dd 'o''clock' k XXX", "yyyy-MM-dd HH:mm:ss Z",
)  # fmt: skip
TIMES = (
    "2026-01-31", "1999-12-31 23:59:59", "2024-02-29T12:34:56.789Z", "31/01/26", "20260131235959",
    "Sat, 31 Jan 2026 1:05 PM", "23:59:59.999", "2026-366", "January 5, 2026 AD", "12:30 AM UTC",
    "2026-13-45", "2026-01-31 10:00:00 +0530", "no date", "", " 2026-01-31", "26-1-3",
)  # fmt: skip
WORDS = (
    "", "a", "12", "-7", "+5", "128", "40000", "2147483648", "9223372036854775808", "1.5", "-0.0", "1e3",
    "1e400", "0x1p3", "1.5f", " 2 ", "NaN", "true", "TRUE", "false", "abc", "žluť", *TIMES[:4],
)  # fmt: skip
WHOLE = (
    0,
    1,
    -1,
    7,
    127,
    -128,
    128,
    32767,
    40000,
    2**31 - 1,
    -(2**31),
    2**31,
    2**53 + 1,
    2**63 - 1,
)
MILLIS = (0, 1, 86_399_999, 86_400_000, 1_767_225_600_123, 1_769_817_600_000, -1, -86_400_001, -62_135_769_600_000, -12_219_292_800_001, 253_402_300_799_999)  # fmt: skip
REAL = (0.0, 1.0, -1.5, 0.1, 1e10, 3.4e38, 1e-45, 123456.789, -7.999, 2.0**63, 1e300, 127.9)


class Maker:
    """Makes schemas and values by chance."""

    def __init__(self, seed: str) -> None:
        self.chance = Random(seed)

    def schema(self, depth: int = 0) -> Schema:
        """Return a schema of a field."""
        chance = self.chance
        kinds = [
            kind
            for kind in ConnectKind
            if depth < 2 or kind not in (ConnectKind.STRUCT, ConnectKind.ARRAY, ConnectKind.MAP)
        ]
        kind = chance.choice([*kinds, ConnectKind.STRING, ConnectKind.INT32, ConnectKind.INT64])
        given: dict[str, Any] = {"kind": kind, "optional": chance.random() < 0.5}
        if kind is ConnectKind.STRUCT:
            given["fields"] = self.fields(depth + 1)
        elif kind is ConnectKind.ARRAY:
            given["items"] = self.schema(depth + 1)
        elif kind is ConnectKind.MAP:
            given |= {"keys": Schema(kind=ConnectKind.STRING), "values": self.schema(depth + 1)}
        by_kind: dict[ConnectKind, list[tuple[str, tuple[tuple[str, str], ...]]]] = {
            ConnectKind.INT32: [("Date", ()), ("Time", ())],
            ConnectKind.INT64: [("Timestamp", ())],
            ConnectKind.BYTES: [("Decimal", (("scale", str(chance.choice((0, 2, 5)))),))],
        }
        logical = by_kind.get(kind)
        if logical and chance.random() < 0.4:
            name, parameters = chance.choice(logical)
            given |= {"name": DATA + name, "version": 1, "parameters": parameters}
        elif chance.random() < 0.2:
            given |= {"name": "io.debezium.some", "version": 1}
        if chance.random() < 0.1:
            given["doc"] = "of a column"
        made = Schema(**given)
        if chance.random() < 0.25 and kind not in (
            ConnectKind.STRUCT,
            ConnectKind.ARRAY,
            ConnectKind.MAP,
        ):
            return Schema(**given, default=self.some(made))
        return made

    def fields(self, depth: int) -> tuple[Field, ...]:
        names = self.chance.sample(NAMES, self.chance.randint(1, 5))
        return tuple(Field(name, self.schema(depth)) for name in names)

    def value(self, schema: Schema) -> Any:
        if schema.optional and self.chance.random() < 0.25:
            return None
        return self.some(schema)

    def some(self, schema: Schema) -> Any:
        """Return a value of ``schema`` that is not null."""
        chance = self.chance
        match schema.kind:
            case ConnectKind.INT8 | ConnectKind.INT16 | ConnectKind.INT32 | ConnectKind.INT64:
                if schema.name == f"{DATA}Date":
                    return chance.choice((0, 1, 20_454, -1, -719_162, -141_428))
                if schema.name == f"{DATA}Time":
                    return chance.choice((0, 1, 86_399_999, 45_000_000))
                if schema.name == f"{DATA}Timestamp":
                    return chance.choice(MILLIS)
                bits = {ConnectKind.INT8: 8, ConnectKind.INT16: 16, ConnectKind.INT32: 32}.get(
                    schema.kind, 64
                )
                number = chance.choice((*WHOLE, *MILLIS))
                half = 1 << (bits - 1)
                return (number + half) % (2 * half) - half
            case ConnectKind.FLOAT32:
                (one,) = struct.unpack(">f", struct.pack(">f", min(chance.choice(REAL), 3e38)))
                return one
            case ConnectKind.FLOAT64:
                return chance.choice(REAL)
            case ConnectKind.BOOLEAN:
                return chance.random() < 0.5
            case ConnectKind.STRING:
                return chance.choice((*WORDS, *TIMES))
            case ConnectKind.BYTES:
                return chance.choice((b"\0", b"\x01", b"\xff\x38", b"\x7f" * 9, b"\x30\x39"))
            case ConnectKind.ARRAY:
                assert schema.items is not None
                return [self.value(schema.items) for _ in range(chance.randint(0, 2))]
            case ConnectKind.MAP:
                assert schema.values is not None
                return {
                    word: self.value(schema.values) for word in ("k", "l")[: chance.randint(0, 2)]
                }
            case ConnectKind.STRUCT:
                return {field.name: self.value(field.schema) for field in schema.fields}

    def plain(self, depth: int = 0) -> Any:
        """Return a value without schema."""
        chance = self.chance
        choices: list[Callable[[], Any]] = [
            lambda: chance.choice(WHOLE),
            lambda: chance.choice(REAL),
            lambda: chance.choice(WORDS),
            lambda: chance.random() < 0.5,
            lambda: None,
        ]
        if depth < 2:
            choices.append(lambda: [self.plain(depth + 1)])
            choices.append(lambda: self.map(depth + 1))
        return chance.choice(choices)()

    def map(self, depth: int = 0) -> dict[str, Any]:
        names = self.chance.sample(NAMES, self.chance.randint(1, 5))
        return {name: self.plain(depth) for name in names}

    def side(self) -> tuple[Schema | None, Any]:
        """Return a key or value: a struct mostly, else a map, a scalar, or nothing."""
        lot = self.chance.random()
        if lot < 0.06:
            return None, None
        if lot < 0.16:
            return None, self.map()
        if lot < 0.26:
            schema = self.schema()
            return schema, self.value(schema)
        named = self.chance.random() < 0.5
        made = Schema(
            kind=ConnectKind.STRUCT,
            name="t.Value" if named else None,
            version=1 if named else None,
            fields=self.fields(0),
            optional=self.chance.random() < 0.2,
        )
        return made, self.value(made)

    def record(self) -> ConnectRecord:
        """Return a record."""
        chance = self.chance
        headers = []
        for name in chance.choices(("h", "a", "id", "H"), k=chance.randint(0, 3)):
            schema = self.schema(2)
            headers.append((name, schema, self.value(schema)))
        return ConnectRecord(
            chance.choice(("server.public.items", "a", "x1y2", "server.other")),
            *self.side(),
            *self.side(),
            tuple(headers),
            chance.choice((None, None, 0, 3)),
            chance.choice((None, *MILLIS)),
        )

    def some_names(self, most: int = 3) -> str:
        return ",".join(self.chance.sample(NAMES, self.chance.randint(1, most)))


def _null(maker: Maker) -> dict[str, str]:
    lot = maker.chance.random()
    return {} if lot < 0.5 else {"replace.null.with.default": str(lot < 0.7).lower()}


def _cast(maker: Maker) -> dict[str, str]:
    types = ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string")
    if maker.chance.random() < 0.25:
        return {"spec": maker.chance.choice(types)}
    names = maker.some_names(6).split(",")
    return {"spec": ",".join(f"{name}:{maker.chance.choice(types)}" for name in names)} | _null(
        maker
    )


def _insert_field(maker: Maker) -> dict[str, str]:
    config = {}
    for what, name in (
        ("topic", "topic"),
        ("partition", "part"),
        ("timestamp", "ts"),
        ("static", "fix"),
    ):
        if maker.chance.random() < 0.5:
            config[f"{what}.field"] = name + maker.chance.choice(("", "?", "!"))
    if not config or maker.chance.random() < 0.1:
        config["topic.field"] = maker.chance.choice(NAMES)
    if "static.field" in config:
        config["static.value"] = "always"
    return config | _null(maker)


def _replace_field(maker: Maker) -> dict[str, str]:
    config = {}
    if maker.chance.random() < 0.5:
        config["exclude"] = maker.some_names()
    if maker.chance.random() < 0.4:
        config["include"] = maker.some_names(8)
    if maker.chance.random() < 0.6:
        olds = maker.chance.sample(NAMES, 2)
        config["renames"] = (
            f"{olds[0]}:new,{olds[1]}:{maker.chance.choice(('other', 'b', olds[0]))}"
        )
    return config | _null(maker)


def _mask_field(maker: Maker) -> dict[str, str]:
    config = {"fields": maker.some_names(5)}
    if maker.chance.random() < 0.4:
        config["replacement"] = maker.chance.choice(("0", "-12.7", "300", "70000", "hidden", "1e3"))
    return config | _null(maker)


def _timestamp(maker: Maker) -> dict[str, str]:
    chance = maker.chance
    config = {"target.type": chance.choice(("string", "unix", "Date", "Time", "Timestamp"))}
    if chance.random() < 0.8:
        config["field"] = chance.choice(NAMES)
    if config["target.type"] == "string" or chance.random() < 0.5:
        config["format"] = chance.choice(DATES)
    if chance.random() < 0.5:
        config["unix.precision"] = chance.choice(
            ("seconds", "milliseconds", "microseconds", "nanoseconds")
        )
    return config | _null(maker)


def _extract(maker: Maker) -> dict[str, str]:
    chance = maker.chance
    path = ".".join(chance.sample(NAMES, chance.randint(1, 2)))
    if chance.random() < 0.5:
        return {"field": chance.choice(NAMES)} | _null(maker)
    path = chance.choice((path, "`x.y`", "inner.`x.y`", "inner.a", "inner.inner.b", "inner.id"))
    return {"field": path, "field.syntax.version": chance.choice(("V1", "V2", "v2"))} | _null(maker)


def _headers(maker: Maker) -> dict[str, str]:
    names = maker.some_names(3)
    headers = ",".join(f"h{number}" for number, _ in enumerate(names.split(",")))
    operation = maker.chance.choice(("move", "copy"))
    return {"fields": names, "headers": headers, "operation": operation} | _null(maker)


LITERALS = (
    "text", "1", "-129", "40000", "3000000000", "1.5", "1.0", "9223372036854775808", "1e400", "0.1e-60",
    "true", "false", "null", "true}", "TRUE", "2026-01-31", "12:34:56.789Z", "2026-01-31T12:34:56.789Z",
    "[1, 2, 300]", "[1, 2.5]", '["a", "b"]', '{"a": 1, "b": 2000}', "[", "[1,", "{a}", " 7 ",
    "+5", "-", "1:2", '"quoted"', "[true, null]", '{"k": "2026-01-31"}', "a,b", "\\:", "2026-01-31x",
    "99:99:99.999Z", "1_000", "0x10", "[[1], [2]]", "12:34",
)  # fmt: skip

CLASSES: dict[str, Callable[[Maker], dict[str, str]]] = {
    "Cast$": _cast,
    "ExtractField$": _extract,
    "Flatten$": lambda m: {} if m.chance.random() < 0.5 else {"delimiter": m.chance.choice("_/.")},
    "HeaderFrom$": _headers,
    "HoistField$": lambda m: {"field": m.chance.choice(NAMES)},
    "InsertField$": _insert_field,
    "MaskField$": _mask_field,
    "ReplaceField$": _replace_field,
    "SetSchemaMetadata$": lambda m: (
        (
            {"schema.name": "n"}
            if m.chance.random() < 0.5
            else {"schema.version": "7", "schema.name": "other"}
        )
        | _null(m)
    ),
    "TimestampConverter$": _timestamp,
    "DropHeaders": lambda m: {"headers": m.chance.choice(("h", "a,h", "nothing"))},
    "Filter": lambda _: {},
    "InsertHeader": lambda m: {"header": "h", "value.literal": m.chance.choice(LITERALS)},
    "RegexRouter": lambda m: dict(
        zip(
            ("regex", "replacement"),
            m.chance.choice(
                (
                    (r"server\.(.*)\.(.*)", "$2.$1"),
                    ("a|ab", "b"),
                    (".*", "all"),
                    (r"(?<n>[a-z])(\d)(.*)", "${n}-$3"),
                    ("nothing", "x"),
                    (r"x(1)?(z)?.*", "[$1$2]"),
                    ("", "q"),
                )
            ),
            strict=True,
        )
    ),
    "TimestampRouter": lambda m: (
        {}
        if m.chance.random() < 0.3
        else {
            "topic.format": m.chance.choice(
                ("${topic}_${timestamp}", "${timestamp}", "$1\\x${topic}")
            ),
            "timestamp.format": m.chance.choice(DATES),
        }
    ),
    "ValueToKey": lambda m: {"fields": m.some_names(2)} | _null(m),
}
"""Class, with $ where it has one for keys and one for values → its properties by chance."""


def questions(seed: object, each: int) -> Iterator[Question]:
    """Give ``each`` questions about every class."""
    for name, config in CLASSES.items():
        for side in ("Key", "Value") if name.endswith("$") else ("",):
            for number in range(each):
                maker = Maker(f"{seed} {name}{side} {number}")
                made = {
                    "class": f"{PACKAGE}{name}{side}",
                    "config": config(maker),
                    "record": written_record(maker.record()),
                }
                yield json.loads(json.dumps(made))
