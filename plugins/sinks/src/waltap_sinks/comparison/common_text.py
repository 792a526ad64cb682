"""Convert values to one text, in PostgreSQL's SQL and Python. Sans-IO.

Floating point is compared bit by bit, since its texts differ (1e+20 and 1.0E20). Numeric has no
trailing zeros, instants are microseconds in UTC, bytes hexadecimal, and arrays JSON. All other
types have the server's text.
"""

import datetime as dt
import json
import struct
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any, Final

INTEGERS: Final = frozenset({"int2", "int4", "int8", "oid"})
ARRAYS: Final = frozenset({"_int2", "_int4", "_int8", "_bool", "_text", "_varchar"})


def source_text(column: str, type_: str) -> str:
    """Return PostgreSQL's SQL for the text of a column.

    ``type_`` is ``pg_type.typname``.
    """
    if type_ in INTEGERS or type_ in {"bool", "time", "text", "varchar"}:
        return f"{column}::text"
    # Bits, since each database prints floats with other digits.
    if type_ == "float8":
        return f"encode(float8send({column}), 'hex')"
    if type_ == "float4":
        return f"encode(float4send({column}), 'hex')"
    # Targets may store another scale than the source: 1.50 and 1.5 are equal.
    if type_ in {"numeric", "money"}:
        return f"trim_scale({column}::numeric)::text"
    # to_char ends at 294276; JSON has the ISO text whatever the server's DateStyle is.
    if type_ == "date":
        return f"to_json({column})#>>'{{}}'"
    if type_ in {"timestamp", "timestamptz"}:
        moment = f"{column} AT TIME ZONE 'UTC'" if type_ == "timestamptz" else column
        return finite(column, f"to_char({moment}, 'YYYY-MM-DD HH24:MI:SS.US')")
    if type_ == "bytea":
        return f"encode({column}, 'hex')"
    if type_ == "interval":
        return duration(column)
    if type_ in ARRAYS:
        return f"array_to_json({column})::text"
    return server_text(column)


def server_text(column: str) -> str:
    """Return PostgreSQL's SQL for a value's sent text."""
    # A cast would give another text for bpchar and inet.
    return f"CASE WHEN {column} IS NULL THEN NULL ELSE concat({column}) END"


def finite(column: str, text: str) -> str:
    """Return ``text``, or infinity's text where it is NULL."""
    return f"CASE WHEN isfinite({column}) THEN {text} ELSE {column}::text END"


def duration(column: str) -> str:
    """Return PostgreSQL's SQL for the ISO duration of an interval."""
    letters = (("year", "Y"), ("month", "M"), ("day", "DT"), ("hour", "H"), ("minute", "M"))
    parts = [f"extract({part} from {column})::bigint, '{end}'" for part, end in letters]
    seconds = f"trim_scale(extract(second from {column})::numeric)"
    return (
        f"CASE WHEN {column} IS NOT NULL THEN concat('P', {', '.join(parts)}, {seconds}, 'S') END"
    )


def reader_of(type_: str) -> Callable[[Any], str]:
    """Return the conversion of a value to the text of `source_text`."""
    if type_ in INTEGERS:
        return lambda value: str(int(value))
    found = _READERS.get(type_)
    if found is not None:
        return found
    return _array if type_ in ARRAYS else _text


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode()
    return value if isinstance(value, str) else str(value)


def _decimal(value: Any) -> str:
    try:
        number = value if isinstance(value, Decimal) else Decimal(str(value))
    except InvalidOperation:
        return str(value)
    if not number.is_finite():
        return str(value)
    text = f"{number:f}"
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text  # PostgreSQL's numeric has no negative zero


def _date(value: Any) -> str:
    if isinstance(value, dt.datetime):
        value = value.date()
    return value.isoformat() if isinstance(value, dt.date) else str(value)


def _moment(value: Any) -> str:
    if isinstance(value, str):
        try:
            value = dt.datetime.fromisoformat(value)
        except ValueError:
            return str(value)
    if value.tzinfo is not None:
        value = value.astimezone(dt.UTC).replace(tzinfo=None)  # as `AT TIME ZONE 'UTC'` gives it
    text: str = value.isoformat(" ", "microseconds")
    return text


def _time(value: Any) -> str:
    if isinstance(value, str):
        try:
            value = dt.time.fromisoformat(value)
        except ValueError:
            return str(value)
    if isinstance(value, dt.timedelta):  # as drivers of MariaDB return a time of day
        value = (dt.datetime(1, 1, 1, tzinfo=dt.UTC) + value).time()
    text: str = value.isoformat()
    return text.rstrip("0") if "." in text else text


def _array(value: Any) -> str:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return str(value)
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


_READERS: Final[dict[str, Callable[[Any], str]]] = {
    "bool": lambda value: "true" if value else "false",
    # One bit is a boolean in the change log.
    "bit": lambda value: str(int(value)) if isinstance(value, bool) else _text(value),
    "float4": lambda value: struct.pack(">f", float(value)).hex(),
    "float8": lambda value: struct.pack(">d", float(value)).hex(),
    "numeric": _decimal,
    "money": _decimal,
    "date": _date,
    "time": _time,
    "timestamp": _moment,
    "timestamptz": _moment,
    # `bytes` of an integer would be as many zeros
    "bytea": lambda value: memoryview(value).hex(),
}
