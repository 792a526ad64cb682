"""Hypothesis strategies for tables and for transactions on them, as SQL.

A case is one table ``items`` with columns of any type, with typmods, defaults, a key or none and a
replica identity, and transactions that insert, update, delete, truncate and roll back to savepoints.
Statements may fail (two rows with one key, say): a failed one is rolled back, and both engines see the
same log. What Debezium is known to do wrongly is left out here and has a corpus of its own.
"""

import json
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import TypeVar

from hypothesis import strategies as st

_Clock = TypeVar("_Clock", time, datetime)

Literals = st.SearchStrategy[str]
"""Draws values as SQL expressions."""

PREAMBLE = """
CREATE TYPE public.mood AS ENUM ('sad', 'so so', 'it''s fine', 'ГлÜck');
CREATE DOMAIN public.positive AS integer CHECK (VALUE > 0);
CREATE DOMAIN public.label AS varchar(20);
CREATE DOMAIN public.price AS numeric(8, 3);
"""
"""Types that columns of cases may have; run it once in a database."""

NAMES = ["id", "b", "Mixed", "with space", "order", "ünï", "a_long_name_" + "x" * 40, "a.b", "c"]


@dataclass(frozen=True)
class Type:
    """A column type: as SQL writes it, values for it, and whether it serves in keys."""

    sql: str
    values: Literals
    key: bool = False


@dataclass(frozen=True)
class Case:
    """One table and what happens to it. Statements name it ``items``."""

    create: tuple[str, ...]
    transactions: tuple[tuple[str, ...], ...]


def quoted(text: str) -> str:
    """Return ``text`` as an SQL string constant."""
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    """Return ``name`` as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def cast(type_: str, texts: st.SearchStrategy[str]) -> Literals:
    """Return constants of ``type_`` from texts."""
    return texts.map(lambda text: f"{quoted(text)}::{type_}")


def integers(bits: int) -> Literals:
    """Return signed integers of a width, the ends more often than chance has them."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, 0])).map(
        lambda n: f"({n})" if n < 0 else str(n)
    )


TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=24)
TIMES = st.times()
DATES = st.dates(date(1, 1, 1), date(9999, 12, 31))
STAMPS = st.datetimes(datetime(1900, 1, 1), datetime(9998, 12, 31))
ZONES = st.sampled_from(["+00", "-08", "+05:30", "+13:45"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**12), 10**12) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
).map(json.dumps)
UUIDS = st.uuids().map(str)


@st.composite
def numerics(draw: st.DrawFn) -> Type:
    """Draw a numeric type with or without precision and scale."""
    if draw(st.booleans()):
        values = st.decimals(allow_nan=False, allow_infinity=False, places=draw(st.integers(0, 12)))
        return Type("numeric", values.map(_plain))
    precision = draw(st.integers(1, 38))
    scale = draw(st.integers(0, precision))
    largest = Decimal(10**precision - 1).scaleb(-scale)
    values = st.decimals(-largest, largest, places=scale, allow_nan=False, allow_infinity=False)
    return Type(f"numeric({precision},{scale})", values.map(_plain), key=True)


def _plain(number: Decimal) -> str:
    return quoted(f"{number:f}") + "::numeric"


@st.composite
def texts_with_length(draw: st.DrawFn) -> Type:
    """Draw a character type with a length."""
    size = draw(st.integers(1, 30))
    kind = draw(st.sampled_from(["varchar", "char"]))
    return Type(f"{kind}({size})", TEXTS.map(lambda text: quoted(text[:size])), key=True)


@st.composite
def bit_strings(draw: st.DrawFn) -> Type:
    """Draw a bit type with a length.

    Not ``bit varying(1)``: Debezium takes it for a boolean and stops at an empty one.
    """
    size = draw(st.integers(1, 70))
    if size == 1 or draw(st.booleans()):
        return Type(f"bit({size})", st.text("01", min_size=size, max_size=size).map(_bits))
    return Type(f"bit varying({size})", st.text("01", max_size=size).map(_bits))


def _bits(digits: str) -> str:
    return f"B'{digits}'"


@st.composite
def times_with_precision(draw: st.DrawFn) -> Type:
    """Draw a date or time type, with a precision where it takes one.

    Values have no more digits than the type: Debezium keeps the surplus digits of a default.
    """
    kind = draw(st.sampled_from(["time", "timestamp", "timestamptz", "timetz"]))
    digits = draw(st.none() | st.integers(0, 6))
    name = kind if digits is None else f"{kind}({digits})"
    step = 10 ** (6 - (6 if digits is None else digits))

    def fitting(value: _Clock) -> _Clock:
        return value.replace(microsecond=value.microsecond // step * step)

    match kind:
        case "time":
            return Type(name, cast(name, TIMES.map(fitting).map(str)), key=True)
        case "timetz":
            return Type(
                name, cast(name, st.tuples(TIMES.map(fitting).map(str), ZONES).map("".join))
            )
        case "timestamp":
            return Type(name, cast(name, STAMPS.map(fitting).map(str)), key=True)
        case _:
            zoned = STAMPS.map(fitting).map(lambda stamp: f"{stamp}+00")
            return Type(name, cast(name, zoned), key=True)


INTERVALS = st.tuples(
    st.integers(-200, 200), st.integers(-400, 400), st.integers(-(10**11), 10**11)
).map(lambda t: f"{t[0]} months {t[1]} days {t[2]} microseconds")

SIMPLE = [
    Type("boolean", st.sampled_from(["true", "false"])),
    Type("smallint", integers(16), key=True),
    Type("integer", integers(32), key=True),
    Type("bigint", integers(64), key=True),
    Type(
        "real", cast("real", st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr))
    ),
    Type(
        "double precision",
        cast("double precision", st.floats(allow_nan=False, allow_infinity=False).map(repr)),
    ),
    Type("text", TEXTS.map(quoted), key=True),
    Type("varchar", TEXTS.map(quoted), key=True),
    Type("bytea", st.binary(max_size=20).map(lambda data: f"'\\x{data.hex()}'::bytea")),
    Type("date", cast("date", DATES.map(str)), key=True),
    Type("interval", cast("interval", INTERVALS)),
    Type("uuid", cast("uuid", UUIDS), key=True),
    Type("json", cast("json", JSON)),
    Type("jsonb", cast("jsonb", JSON)),
    Type("inet", cast("inet", st.ip_addresses().map(str)), key=True),
    Type("cidr", cast("cidr", st.ip_addresses(v=4).map(str))),
    Type("macaddr", cast("macaddr", st.binary(min_size=6, max_size=6).map(bytes.hex))),
    Type("oid", st.integers(0, 2**32 - 1).map(lambda n: f"{n}::oid")),
    Type(
        "int4range",
        st.tuples(st.integers(-1000, 1000), st.integers(0, 1000)).map(
            lambda t: f"int4range({t[0]}, {t[0] + t[1]})"
        ),
    ),
    Type(
        "point",
        st.tuples(*[st.integers(-(10**6), 10**6)] * 2).map(lambda p: f"point({p[0]}, {p[1]})"),
    ),
    Type("money", st.integers(-(10**9), 10**9).map(lambda n: f"({n / 100})::numeric::money")),
    Type(
        "public.mood", cast("public.mood", st.sampled_from(["sad", "so so", "it's fine", "ГлÜck"]))
    ),
    Type("public.positive", st.integers(1, 2**31 - 1).map(str)),
    Type("public.label", TEXTS.map(lambda text: quoted(text[:20]))),
    Type(
        "public.price", st.integers(-(10**8) + 1, 10**8 - 1).map(lambda n: f"({n})::numeric / 1000")
    ),
]

ELEMENTS = {
    "integer": integers(32),
    "bigint": integers(64),
    "boolean": st.sampled_from(["true", "false"]),
    "text": TEXTS.map(quoted),
    "varchar(10)": TEXTS.map(lambda text: quoted(text[:10])),
    "numeric(10,2)": st.integers(-(10**9), 10**9).map(lambda n: f"({n})::numeric / 100"),
    "double precision": cast("double precision", st.integers(-(10**6), 10**6).map(str)),
    "date": cast("date", DATES.map(str)),
    "timestamptz": cast("timestamptz", STAMPS.map(lambda stamp: f"{stamp}+00")),
    "uuid": cast("uuid", UUIDS),
}


@st.composite
def arrays(draw: st.DrawFn) -> Type:
    """Draw an array type of one dimension; elements may be NULL."""
    element = draw(st.sampled_from(sorted(ELEMENTS)))
    items = st.lists(ELEMENTS[element] | st.just("NULL"), max_size=4)
    return Type(
        f"{element}[]", items.map(lambda values: f"ARRAY[{', '.join(values)}]::{element}[]")
    )


TYPES = st.one_of(
    st.sampled_from(SIMPLE),
    numerics(),
    texts_with_length(),
    bit_strings(),
    times_with_precision(),
    arrays(),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Draw a table with one to six columns, and up to four transactions on it."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=6, unique=True))
    types = {name: draw(TYPES) for name in names}
    able = [name for name in names if types[name].key]
    key = draw(st.lists(st.sampled_from(able), max_size=2, unique=True)) if able else []
    columns = []
    for name, type_ in types.items():
        text = f"{identifier(name)} {type_.sql}"
        if draw(st.booleans()):
            text += f" DEFAULT {draw(type_.values)}"
        if name not in key and draw(st.booleans()):
            text += " NOT NULL"
        columns.append(text)
    if key:
        columns.append(f"PRIMARY KEY ({', '.join(map(identifier, key))})")
    create = [f"CREATE TABLE items ({', '.join(columns)})"]
    full = draw(st.booleans())
    if full:
        create.append("ALTER TABLE items REPLICA IDENTITY FULL")
    # without an identity PostgreSQL refuses to update or delete rows of a published table
    changeable = bool(key) or full
    rows = tuple(draw(st.lists(_insert(types), min_size=2, max_size=4)))
    groups = draw(st.lists(_transactions(types, changeable=changeable), min_size=1, max_size=4))
    return Case(tuple(create), (rows, *groups))


@st.composite
def _transactions(draw: st.DrawFn, types: dict[str, Type], *, changeable: bool) -> tuple[str, ...]:
    kinds = ["insert", "insert", "truncate", "savepoint"]
    kinds += ["update", "update", "update", "update", "delete", "delete"] if changeable else []
    statements = []
    for kind in draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=5)):
        row = (
            "ctid = (SELECT ctid FROM items ORDER BY ctid OFFSET"
            f" {draw(st.integers(0, 3))} LIMIT 1)"
        )
        match kind:
            case "insert":
                statements.append(draw(_insert(types)))
            case "update":
                chosen = draw(st.lists(st.sampled_from(list(types)), min_size=1, unique=True))
                settings = [f"{identifier(n)} = {draw(_cell(types[n]))}" for n in chosen]
                statements.append(f"UPDATE items SET {', '.join(settings)} WHERE {row}")
            case "delete":
                statements.append(f"DELETE FROM items WHERE {row}")
            case "truncate":
                statements.append("TRUNCATE items")
            case _:
                statements += ["SAVEPOINT s", draw(_insert(types)), "ROLLBACK TO SAVEPOINT s"]
    return tuple(statements)


@st.composite
def _insert(draw: st.DrawFn, types: dict[str, Type]) -> str:
    values = [draw(_cell(type_)) for type_ in types.values()]
    return f"INSERT INTO items ({', '.join(map(identifier, types))}) VALUES ({', '.join(values)})"


def _cell(type_: Type) -> Literals:
    """A value; now and then NULL or the column's default."""
    return st.one_of(type_.values, type_.values, type_.values, st.sampled_from(["NULL", "DEFAULT"]))
