"""Values of the hunted tables: how they are made, and one form in which both sides are compared.

PostgreSQL's text (the oracle's, the source's) and what a sink holds (JSON, Arrow) are brought into the
same canonical Python value by code that shares nothing with the engine.
"""

import contextlib
import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from random import Random
from typing import Any, Final

PLACEHOLDER: Final = "__debezium_unavailable_value"
_PLACEHOLDERS: Final = (PLACEHOLDER, PLACEHOLDER.encode().hex())

EVENT_SETTINGS: Final[dict[str, Any]] = {
    "decimal.handling.mode": "string",
    "time.precision.mode": "isostring",
    "binary.handling.mode": "hex",
    "unavailable.value.placeholder": PLACEHOLDER,
    "skipped.operations": "none",
    "value.converter.replace.null.with.default": False,
    "key.converter.replace.null.with.default": False,
}
"""Properties under which a JSON value keeps all that the source's value has."""

LETTERS: Final = "abcdefghijklmnop 'ö€\"\\\n,{}"


def _text(random: Random, most: int = 24) -> str:
    return "".join(random.choice(LETTERS) for _ in range(random.randrange(most)))


def _toast(random: Random) -> str:
    """A value that is stored out of line: long, and not to be compressed."""
    if random.random() < 0.4:
        return _text(random)
    return "".join(
        random.choices("0123456789abcdefghijklmnopqrstuvwxyz", k=random.randrange(2500, 5000))
    )


def _day(random: Random) -> dt.date:
    return dt.date(1900, 1, 1) + dt.timedelta(days=random.randrange(70_000))


def _moment(random: Random) -> str:
    clock = dt.timedelta(microseconds=random.randrange(86_400_000_000))
    return str(dt.datetime.combine(_day(random), dt.time()) + clock)


def _clock(random: Random) -> str:
    return _moment(random).split(" ")[1]


def _array(random: Random, one: Callable[[Random], object]) -> str:
    items = (None if random.random() < 0.1 else one(random) for _ in range(random.randrange(5)))
    quoted = (
        "NULL" if i is None else '"' + str(i).replace("\\", "\\\\").replace('"', '\\"') + '"'
        for i in items
    )
    return "{" + ",".join(quoted) + "}"


TYPES: Final[dict[str, Callable[[Random], object]]] = {
    "int2": lambda r: r.randrange(-32768, 32768),
    "int4": lambda r: r.choice((r.randrange(-9, 9), r.randrange(-(2**31), 2**31))),
    "int8": lambda r: r.choice((r.randrange(9), r.randrange(-(2**63), 2**63))),
    "bool": lambda r: r.choice(("true", "false")),
    "numeric(38,6)": lambda r: Decimal(r.randrange(-(10**9), 10**9)).scaleb(-3),
    "numeric": lambda r: Decimal(r.randrange(-(10**30), 10**30)).scaleb(-r.randrange(6)),
    "float8": lambda r: r.choice((0.0, 1.5, -2e300, r.random())),
    "text": _toast,
    "varchar(30)": _text,
    "jsonb": lambda r: json.dumps({"k": _toast(r), "n": [r.randrange(9), None, {}]}),
    "bytea": lambda r: "\\x" + r.randbytes(r.choice((3, 3000))).hex(),
    "uuid": lambda r: f"{r.getrandbits(128):032x}",
    "date": _day,
    "timestamp": _moment,
    "timestamptz": lambda r: _moment(r) + "+00",
    "time": _clock,
    "int4[]": lambda r: _array(r, lambda r: r.randrange(100)),
    "text[]": lambda r: _array(r, _text),
    "mood": lambda r: r.choice(("sad", "ok", "it's")),
}
"""SQL type → maker of values, as texts for a cast. ``mood`` is an enum of the hunt."""

KEY_TYPES: Final = ("int4", "int8", "varchar(30)", "uuid", "int2", "date")


def literal(value: object) -> str:
    """Return ``value`` as an SQL literal of unknown type."""
    if value is None:
        return "NULL"
    text = str(value)
    escaped = text.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


# --- one form ------------------------------------------------------------------------------------


def from_text(type_name: str, text: str | None) -> Any:
    """Return the canonical value of PostgreSQL's text of a type, named as format_type() names it."""
    if text is None:
        return None
    if type_name.endswith("[]"):
        return [from_text(type_name[:-2], item) for item in _items(text)]
    match type_name:
        case "boolean":
            return text in ("t", "true")
        case "bytea":
            return text.removeprefix("\\x")
        case _:
            return canonical(type_name, text)


def canonical(type_name: str, value: Any) -> Any:
    """Return the canonical value of what a sink holds (JSON or Arrow); itself when it is no such value."""
    if value is None:
        return None
    if type_name.endswith("[]"):
        return [canonical(type_name[:-2], v) for v in value] if isinstance(value, list) else value
    with contextlib.suppress(ValueError, TypeError, ArithmeticError, AttributeError):
        return _scalar(type_name, value)
    return value


def _scalar(type_name: str, value: Any) -> Any:
    match type_name.partition("(")[0]:
        case "smallint" | "integer" | "bigint":
            return int(value)
        case "numeric":
            return Decimal(value).normalize()
        case "double precision":
            return float(value)
        case "text" | "character varying":
            return value
        case "bytea":
            return value.hex() if isinstance(value, bytes) else value
        case "jsonb":
            return json.dumps(json.loads(value), sort_keys=True)
        case "date":
            return value if isinstance(value, dt.date) else dt.date.fromisoformat(value[:10])
        case "time without time zone":
            return (
                value
                if isinstance(value, dt.time)
                else dt.time.fromisoformat(value.removesuffix("Z"))
            )
        case "timestamp without time zone" | "timestamp with time zone":
            moment = value if isinstance(value, dt.datetime) else _iso(value)
            return moment.replace(tzinfo=None)
        case _:
            return value


def _iso(text: str) -> dt.datetime:
    moment = dt.datetime.fromisoformat(text.replace(" ", "T"))
    return moment if moment.tzinfo is None else moment.astimezone(dt.UTC)


def is_placeholder(value: Any) -> bool:
    if isinstance(value, list) and len(value) == 1:
        return is_placeholder(value[0])
    return isinstance(value, str) and value in _PLACEHOLDERS


def _items(text: str) -> list[str | None]:
    """Return the elements of an array of one dimension, from PostgreSQL's text."""
    found: list[str | None] = []
    at, end = 1, len(text) - 1
    while at < end:
        item, quoted = "", text[at] == '"'
        at += quoted
        while at < end and (text[at] != '"' if quoted else text[at] != ","):
            at += text[at] == "\\"
            item += text[at]
            at += 1
        at += 1 + quoted
        found.append(None if item == "NULL" and not quoted else item)
    return found
