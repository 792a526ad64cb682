"""``hstore`` under ``hstore.handling.mode``: a JSON object as text, or a map.

Debezium reads pairs into a ``java.util.HashMap`` and writes them in its order. That order depends
only on the keys. We produce the same order, so that texts can be compared.
"""

from waltap.base.import_rules import pa
from waltap.changes.arrow.column import arrow_type, converted
from waltap.changes.decode.relation import Column
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.changes.mapping.java_number import java_order
from waltap.changes.mapping.json_schema import quote
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeMapper
from waltap.changes.mapping.value_form import ValueForm, column_mapping, placeholder_text
from waltap_postgres.types.array import quoted


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


def _pairs(text: str) -> list[tuple[str, str | None]]:
    return list(parse_hstore(text).items())


_MAP_ARROW = converted("hstore", lambda: pa.map_(pa.string(), pa.string()), _pairs)
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
