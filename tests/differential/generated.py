"""Hypothesis strategies for tables and for transactions on them, as SQL.

A case is one table ``items`` with columns of any type, with typmods, defaults, generated columns, a key, a
unique index or none, and a replica identity. It has transactions that insert, update, delete, truncate and roll
back to savepoints, and alterations of the table between them.
Statements may fail (two rows with one key, say): a failed one is rolled back, and both engines see the
same log. What Debezium is known to do wrongly is left out here and has a corpus of its own.
"""

import json
from dataclasses import dataclass
from datetime import date, datetime, time
from decimal import Decimal
from typing import TypeVar
from xml.sax.saxutils import escape

from hypothesis import strategies as st

_Clock = TypeVar("_Clock", time, datetime)

Literals = st.SearchStrategy[str]
"""Draws values as SQL expressions."""

PREAMBLE = """
CREATE EXTENSION hstore; CREATE EXTENSION citext; CREATE EXTENSION ltree; CREATE EXTENSION isn;
CREATE TYPE public.mood AS ENUM ('sad', 'so so', 'it''s fine', 'ГлÜck');
CREATE DOMAIN public.positive AS integer CHECK (VALUE > 0);
CREATE DOMAIN public.label AS varchar(20);
CREATE DOMAIN public.price AS numeric(8, 3);
CREATE DOMAIN public.dear AS public.price CHECK (VALUE > -1000);
CREATE DOMAIN public.seven AS integer DEFAULT 7;
CREATE DOMAIN public.words AS text[];
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
    """One table and what happens to it. Statements name it ``items``.

    A transaction that begins with ``ALTER`` runs when everything before it is delivered, since Debezium asks
    the server for what the table is by then.
    """

    create: tuple[str, ...]
    transactions: tuple[tuple[str, ...], ...]


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def cast(type_: str, texts: st.SearchStrategy[str]) -> Literals:
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
ENDLESS = ["infinity", "-infinity"]
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
            stamps = STAMPS.map(fitting).map(str) | st.sampled_from(ENDLESS)
            return Type(name, cast(name, stamps), key=True)
        case _:
            zoned = STAMPS.map(fitting).map(lambda stamp: f"{stamp}+00") | st.sampled_from(ENDLESS)
            return Type(name, cast(name, zoned), key=True)


LABELS = st.lists(st.sampled_from(["a", "B_1", "top"]), max_size=3).map(".".join)
PAIRS = st.dictionaries(TEXTS, st.none() | TEXTS, max_size=20).map(
    lambda pairs: ", ".join(
        f"{_member(key)}=>{'NULL' if value is None else _member(value)}"
        for key, value in pairs.items()
    )
)


def _member(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


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
    Type("date", cast("date", DATES.map(str) | st.sampled_from(ENDLESS)), key=True),
    Type("interval", cast("interval", INTERVALS)),
    Type("uuid", cast("uuid", UUIDS), key=True),
    Type("json", cast("json", JSON)),
    Type("jsonb", cast("jsonb", JSON)),
    Type("inet", cast("inet", st.ip_addresses().map(str)), key=True),
    Type("cidr", cast("cidr", st.ip_addresses(v=4).map(str))),
    Type("macaddr", cast("macaddr", st.binary(min_size=6, max_size=6).map(bytes.hex))),
    Type("macaddr8", cast("macaddr8", st.binary(min_size=8, max_size=8).map(bytes.hex))),
    Type('"char"', st.sampled_from("a ~?").map(quoted)),
    Type("name", TEXTS.map(lambda text: quoted(text[:12]))),
    Type("xml", cast("xml", TEXTS.map(lambda text: f"<a>{escape(text)}</a>"))),
    Type("tsvector", cast("tsvector", st.sampled_from(["", "'a':1 'b c':2A", "fat"]))),
    Type("hstore", cast("hstore", PAIRS)),
    Type("citext", TEXTS.map(quoted).map(lambda text: f"{text}::citext"), key=True),
    Type("ltree", cast("ltree", LABELS), key=True),
    Type("isbn", st.sampled_from(["'978-0-393-04002-9'::isbn", "'0-393-04002-X'::isbn"])),
    Type("oid", st.integers(0, 2**32 - 1).map(lambda n: f"{n}::oid")),
    Type(
        "int4range",
        st.tuples(st.integers(-1000, 1000), st.integers(0, 1000)).map(
            lambda t: f"int4range({t[0]}, {t[0] + t[1]})"
        ),
    ),
    Type("numrange", cast("numrange", st.sampled_from(["empty", "(,1.50]", "[-1,2.5)"]))),
    Type(
        "daterange", cast("daterange", st.sampled_from(["empty", "(,)", "[2020-01-01,infinity)"]))
    ),
    Type("tsquery", cast("tsquery", st.sampled_from(["", "a & b"]))),
    Type("box", st.just("'(1,1),(0,0)'::box")),
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
    Type("public.dear", st.integers(-(10**5), 10**5).map(lambda n: f"({n})::numeric / 1000")),
    Type("public.seven", integers(32)),
    Type(
        "public.words", st.sampled_from(["'{}'::text[]", "ARRAY['a', NULL, 'b,c']", "'{{a},{b}}'"])
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
    "smallint": integers(16),
    "real": st.sampled_from(["'NaN'::real", "1e-45", "0.1", "16777216"]),
    "char(4)": TEXTS.map(lambda text: quoted(text[:4])),
    "time(3)": cast("time(3)", TIMES.map(lambda value: value.replace(microsecond=0)).map(str)),
    "timestamp(3)": cast("timestamp(3)", STAMPS.map(str)),
    "numeric": st.integers(-(10**20), 10**20).map(lambda n: f"({n})::numeric / 1000"),
    "bytea": st.binary(max_size=8).map(lambda data: f"'\\x{data.hex()}'::bytea"),
    "jsonb": cast("jsonb", JSON),
    "inet": cast("inet", st.ip_addresses().map(str)),
    "int4range": st.sampled_from(["int4range(1, 5)", "'empty'::int4range"]),
    "hstore": cast("hstore", PAIRS),
    "citext": TEXTS.map(quoted),
    "oid": st.integers(0, 2**32 - 1).map(lambda n: f"{n}::oid"),
    "money": st.just("1.5::money"),
    "interval": st.just("'1 day'::interval"),
    "public.positive": st.integers(1, 9).map(str),
}


@st.composite
def arrays(draw: st.DrawFn) -> Type:
    """Draw an array type; elements may be NULL, and a value may have two dimensions."""
    element = draw(st.sampled_from(sorted(ELEMENTS)))
    items = st.lists(ELEMENTS[element] | st.just("NULL"), max_size=4)
    flat = items.map(lambda values: f"ARRAY[{', '.join(values)}]::{element}[]")
    deep = ELEMENTS[element].map(lambda value: f"ARRAY[ARRAY[{value}], ARRAY[NULL]]::{element}[]")
    return Type(f"{element}[]", st.one_of(flat, flat, flat, deep))


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
    """Draw a table with one to six columns, and up to four transactions and alterations on it."""
    names = draw(st.lists(st.sampled_from(NAMES), min_size=2, max_size=6, unique=True))
    types = {name: draw(TYPES) for name in names}
    able = [name for name in names if types[name].key]
    key = draw(st.lists(st.sampled_from(able), max_size=3, unique=True)) if able else []
    index = bool(key) and draw(st.sampled_from([False, False, True]))
    columns = []
    for name, type_ in types.items():
        text = f"{identifier(name)} {type_.sql}"
        if draw(st.booleans()):
            text += f" DEFAULT {draw(_defaults(type_))}"
        if (name in key and index) or (name not in key and draw(st.booleans())):
            text += " NOT NULL"
        columns.append(text)
    if draw(st.sampled_from([False, False, True])):
        # a text or a call would be a default for Debezium
        made = f"CASE WHEN {identifier(names[0])} IS NULL THEN 1 END"
        columns.append(f"made integer GENERATED ALWAYS AS ({made}) STORED")
    keys = ", ".join(map(identifier, key))
    if key and not index:
        columns.append(f"PRIMARY KEY ({keys})")
    create = [f"CREATE TABLE items ({', '.join(columns)})"]
    if index:
        create.append(f"CREATE UNIQUE INDEX by_index ON items ({keys})")
    identities = ["DEFAULT", "FULL", "FULL", "NOTHING", *(["USING INDEX by_index"] * 3 * index)]
    identity = draw(st.sampled_from(identities))
    create.append(f"ALTER TABLE items REPLICA IDENTITY {identity}")
    # without an identity PostgreSQL refuses to update or delete rows of a published table
    changeable = identity not in {"DEFAULT", "NOTHING"} or (
        identity == "DEFAULT" and bool(key) and not index
    )
    rows = tuple(draw(st.lists(_insert(types), min_size=2, max_size=4)))
    groups = [rows]
    for number in range(draw(st.integers(1, 4))):
        if number and draw(st.booleans()):
            groups.append(draw(_alteration(types, key, number)))
        groups.append(draw(_transactions(types, changeable=changeable)))
    return Case(tuple(create), tuple(groups))


@st.composite
def _alteration(
    draw: st.DrawFn, types: dict[str, Type], key: list[str], number: int
) -> tuple[str, ...]:
    """Draw a change of the table; ``types`` are its columns afterwards."""
    free = [name for name in types if name not in key]
    match draw(st.sampled_from(["add", "add", "drop", "rename", "default", "widen"])):
        case "drop" if len(free) > 1:
            name = draw(st.sampled_from(free))
            del types[name]
            return (f"ALTER TABLE items DROP COLUMN {identifier(name)} CASCADE",)
        case "rename" if free:
            name, new = draw(st.sampled_from(free)), f"renamed {number}"
            types[new] = types.pop(name)
            return (f"ALTER TABLE items RENAME {identifier(name)} TO {identifier(new)}",)
        case "default" if free:
            name = draw(st.sampled_from(free))
            value = draw(_defaults(types[name]))
            return (f"ALTER TABLE items ALTER {identifier(name)} SET DEFAULT {value}",)
        case "widen" if [name for name in free if types[name].sql == "integer"]:
            name = draw(st.sampled_from([n for n in free if types[n].sql == "integer"]))
            types[name] = Type("text", TEXTS.map(quoted))
            return (
                f"ALTER TABLE items ALTER {identifier(name)} DROP DEFAULT,"
                f" ALTER {identifier(name)} TYPE text",
            )
        case _:
            name, added = f"added {number}", draw(TYPES)
            types[name] = added
            default = f" DEFAULT {draw(_defaults(added))}" if draw(st.booleans()) else ""
            return (f"ALTER TABLE items ADD {identifier(name)} {added.sql}{default}",)


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


def _defaults(type_: Type) -> Literals:
    """Values for defaults: Debezium has no default that is infinite."""
    return type_.values.filter(lambda value: "infinity" not in value)


def _cell(type_: Type) -> Literals:
    """A value; now and then NULL or the column's default."""
    return st.one_of(type_.values, type_.values, type_.values, st.sampled_from(["NULL", "DEFAULT"]))
