"""The contract of converters, which replace columns' schema and values.

The engine asks a converter once per column of a relation version. It either leaves the column
alone or returns a `ColumnConversion`. The engine converts values by column, before it renders a
batch. From then on a tuple has the JSON text of the Connect value instead of PostgreSQL's text,
and `conversion_mapping` reads it. So every format, snapshots and streams, rows and keys treat
converted columns like any others.
"""

import json
from base64 import b64decode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from waltap.changes.decode.relation import Column, Relation
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.json_schema import VALUES, value_json
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeOptions

INTEGER_BITS = {
    ConnectKind.INT8: 8,
    ConnectKind.INT16: 16,
    ConnectKind.INT32: 32,
    ConnectKind.INT64: 64,
}
FLOATS = frozenset({ConnectKind.FLOAT32, ConnectKind.FLOAT64})
ZEROS: dict[ConnectKind, object] = {
    **dict.fromkeys(INTEGER_BITS, 0),
    **dict.fromkeys(FLOATS, 0.0),
    ConnectKind.BOOLEAN: False,
    ConnectKind.STRING: "",
    ConnectKind.BYTES: b"",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnConversion:
    """Describe the result of a converter for one column."""

    # The field's Connect schema, with optionality and default.
    schema: Schema
    # Takes the column's values in one table's part of a batch: PostgreSQL's text, or None for
    # NULL. Returns as many Connect values (int, float, bool, str, bytes, list, dict, None) in
    # their order. It keeps no state between calls: where it raises, the engine calls it again
    # with single values to find the bad one. Values that the server did not send are not among
    # them.
    values: Callable[[Sequence[str | None]], Sequence[object]]


# Gets a column of a described relation; None leaves the column alone. The same question must get
# the same answer.
ColumnConverter = Callable[[Relation, Column], ColumnConversion | None]


def carried(schema: Schema, value: object) -> str | None:
    """Return a Connect value in the text form that tuples carry.

    Raises TypeError when the value does not fit ``schema``.
    """
    _check(schema, value)
    if value is None:
        return None
    return value_json(schema, _walked(schema, value, _floats))


def conversion_mapping(conversion: ColumnConversion, options: TypeOptions) -> ColumnMapping:
    """Return the mapping of a converted column.

    Its tuples hold texts of `carried`.
    """
    schema = conversion.schema
    zero = _zero(schema) if schema.default is None else schema.default
    unavailable: object = None
    if schema.kind is ConnectKind.STRING:
        unavailable = options.unavailable_value_placeholder.decode("utf-8", "replace")
    elif schema.kind is ConnectKind.BYTES:
        unavailable = options.unavailable_value_placeholder
    if not schema.optional:
        null_json = value_json(schema, zero)
    elif options.replace_null_with_default:
        null_json = value_json(schema, schema.default)
    else:
        null_json = "null"
    return ColumnMapping(
        schema=schema,
        to_json=None,
        to_connect=partial(from_json, schema),
        null_json=null_json,
        unavailable_json=null_json if unavailable is None else value_json(schema, unavailable),
        unavailable=unavailable,
        fallback=None if schema.optional else zero,
        converted=True,
    )


def from_json(schema: Schema, text: str) -> Any:
    """Return the Connect value of its JSON text."""
    return _walked(schema, json.loads(text), _restored)


def _check(schema: Schema, value: Any) -> None:
    """Raise TypeError when ``value`` does not fit ``schema``."""
    kind = schema.kind
    if value is None:
        if not schema.optional:
            raise TypeError("it gave None, and the schema is not optional")
        return
    if kind in INTEGER_BITS:
        limit = 1 << (INTEGER_BITS[kind] - 1)
        # `type`, not isinstance: True is an int in Python, and no number in Connect.
        fits = type(value) is int and -limit <= value < limit
    elif kind in FLOATS:
        fits = type(value) in {int, float}
    elif kind is ConnectKind.STRING:
        # UTF-8 has no lone surrogates, so every encoder would fail at them later.
        fits = isinstance(value, str) and (
            value.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in value)
        )
    else:
        fits = isinstance(value, VALUES[kind])
    if not fits:
        what = "another value" if type(value) is int else type(value).__name__
        raise TypeError(f"it gave {what} where its schema has {kind.value}")
    if kind is ConnectKind.ARRAY:
        for item in value:
            _check(_of(schema.items), item)
    elif kind is ConnectKind.MAP:
        for key, member in value.items():
            _check(_of(schema.keys), key)
            _check(_of(schema.values), member)
    elif kind is ConnectKind.STRUCT:
        _members(schema, value)


def _members(schema: Schema, value: Mapping[str, object]) -> None:
    unknown = sorted(map(str, value.keys() - {member.name for member in schema.fields}))
    if unknown:
        raise TypeError(f"it gave members that its schema has not: {', '.join(unknown)}")
    for member in schema.fields:
        _check(member.schema, value.get(member.name))


def _of(schema: Schema | None) -> Schema:
    if schema is None:
        raise TypeError("its schema says nothing of its parts: items, keys or values is missing")
    return schema


def _walked(schema: Schema, value: Any, scalar: Callable[[ConnectKind, Any], Any]) -> Any:
    """Return ``value`` with ``scalar`` of everything in it that has no parts."""
    if value is None:
        return None
    if schema.kind is ConnectKind.ARRAY:
        return [_walked(_of(schema.items), item, scalar) for item in value]
    if schema.kind is ConnectKind.MAP:
        keys, values = _of(schema.keys), _of(schema.values)
        # JSON has maps with keys other than strings as lists of pairs.
        pairs = value.items() if isinstance(value, dict) else value
        return {_walked(keys, key, scalar): _walked(values, each, scalar) for key, each in pairs}
    if schema.kind is ConnectKind.STRUCT:
        return {f.name: _walked(f.schema, value.get(f.name), scalar) for f in schema.fields}
    return scalar(schema.kind, value)


def _floats(kind: ConnectKind, value: Any) -> Any:
    """Return ``value`` as a float, where it is one."""
    return float(value) if kind in FLOATS else value  # also "NaN" and "Infinity"


def _restored(kind: ConnectKind, value: Any) -> Any:
    """Return the Connect value of its JSON form."""
    return b64decode(value) if kind is ConnectKind.BYTES else _floats(kind, value)


def _zero(schema: Schema) -> object:
    """Return the placeholder for a required field's missing value."""
    if schema.kind is ConnectKind.STRUCT:
        return {f.name: None if f.schema.optional else _zero(f.schema) for f in schema.fields}
    if schema.kind is ConnectKind.ARRAY:
        return []
    return {} if schema.kind is ConnectKind.MAP else ZEROS[schema.kind]
