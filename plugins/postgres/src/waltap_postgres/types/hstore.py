"""``hstore`` under ``hstore.handling.mode``: a JSON object as text, or a map.

Debezium reads pairs into a ``java.util.HashMap`` and writes them in its order. That order depends
only on the keys. We produce the same order, so that texts can be compared.
"""

import struct
from collections.abc import Iterable

from waltap.base.import_rules import pa
from waltap.changes.arrow.column import arrow_type, converted
from waltap.changes.decode.relation import Column
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.json_schema import quote
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeMapper
from waltap.changes.mapping.value_form import ValueForm, column_mapping, placeholder_text
from waltap_postgres.types.array import quoted

# Keys are mostly names that repeat in every row.
_CACHED_KEYS = 65_536
_CACHED_KEY_LENGTH = 64  # longer keys are no names that come again


def parse_hstore(text: str) -> dict[str, str | None]:
    """Return the pairs of ``"a"=>"1", "b"=>NULL`` in the server's order."""
    pairs: dict[str, str | None] = {}
    at, end = 0, len(text)
    while at < end:
        if text[at] != '"':
            raise ValueError("malformed hstore")
        key, at = quoted(text, at + 1, "hstore")
        if text[at : at + 2] != "=>":
            raise ValueError("malformed hstore: a key without value")
        at += 2
        if text[at : at + 4] == "NULL":
            pairs[key] = None
            at += 4
        elif text[at : at + 1] == '"':
            pairs[key], at = quoted(text, at + 1, "hstore")
        else:
            raise ValueError("malformed hstore: a value without quotes")
        if at < end and text[at : at + 2] != ", ":
            raise ValueError("malformed hstore: junk between pairs")
        at += 2
    return pairs


class _JavaHashes(dict[str, int]):
    """Map a key to Java's hash, as a HashMap spreads it. The map is emptied when full."""

    def __missing__(self, key: str) -> int:
        if len(self) >= _CACHED_KEYS:
            self.clear()
        code = 0
        units = key.encode("utf-16-be")
        # `String.hashCode` works on UTF-16 code units.
        for (unit,) in struct.iter_unpack(">H", units):
            code = (31 * code + unit) & 0xFFFFFFFF
        # HashMap folds the upper half of a hash into the low bits.
        code ^= code >> 16
        if len(key) <= _CACHED_KEY_LENGTH:
            self[key] = code
        return code


_SPREAD = _JavaHashes()


def java_order(keys: Iterable[str]) -> list[str]:
    """Return ``keys`` in the order of a ``java.util.HashMap``.

    ``keys`` are in order of insertion.
    """
    listed = list(keys)
    # A HashMap starts with 16 buckets and doubles them when three quarters full.
    buckets = 16
    while len(listed) > buckets * 3 // 4:
        buckets *= 2
    mask = buckets - 1
    # The low bits select the bucket. A stable sort keeps the order of insertion within one;
    # Java's order differs only in buckets that it turns into trees (eight keys and more in one of
    # 64).
    return sorted(listed, key=lambda key: _SPREAD[key] & mask)


def _ordered(text: str) -> dict[str, str | None]:
    pairs = parse_hstore(text)
    if len(pairs) < 2:
        return pairs
    return {key: pairs[key] for key in java_order(pairs)}


def _object(text: str) -> str:
    """Return the pairs as a compact JSON object."""
    members = (
        f"{quote(key)}:{'null' if value is None else quote(value)}"
        for key, value in _ordered(text).items()
    )
    return f"{{{','.join(members)}}}"


def _map_type() -> "pa.DataType":
    return pa.map_(pa.string(), pa.string())


def _pairs(text: str) -> list[tuple[str, str | None]]:
    return list(parse_hstore(text).items())


_MAP_ARROW = converted("hstore", _map_type, _pairs)
_JSON_ARROW = converted("hstore", arrow_type("string"), _object, (("waltap.form", "json"),))


def build_hstore(column: Column, mapper: TypeMapper) -> ColumnMapping:
    """Map ``hstore``."""
    options = mapper.options
    text = placeholder_text(options)
    if options.hstore_handling_mode == "map":
        form = ValueForm(
            schema=Schema(
                kind=ConnectKind.MAP,
                keys=Schema(kind=ConnectKind.STRING),
                values=Schema(kind=ConnectKind.STRING, optional=True),
            ),
            to_json=_object,
            to_connect=_ordered,
            zero={},
            unavailable={text: text},
            arrow=_MAP_ARROW,
        )
    else:
        form = ValueForm(
            schema=Schema(kind=ConnectKind.STRING, name="io.debezium.data.Json", version=1),
            to_json=lambda value: quote(_object(value)),
            to_connect=_object,
            zero="{}",
            unavailable=f"{{{quote(text)}:{quote(text)}}}",
            arrow=_JSON_ARROW,
        )
    return column_mapping(column, options, form)
