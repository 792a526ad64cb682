"""Names of topics and fields in another style.

Debezium has these transforms in its JDBC sink connector.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal

import msgspec

from waltap.base.property import Properties, declare
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import (
    ConnectRecord,
    RecordTransform,
    RecordTransformContext,
    SchemaMemory,
)
from waltap_transforms.debezium.routing import MAX_TOPICS
from waltap_transforms.specs import debezium_spec, each
from waltap_transforms.structs import ENVELOPE, projection, without_repeats

_PACKAGE = "io.debezium.connector.jdbc.transforms"
_BORDERS = re.compile(
    r"([a-z])([A-Z])|([a-zA-Z])([0-9])|([0-9])([a-zA-Z])|\.",
)
_SEPARATORS = re.compile(r"[._]+")

Style = Literal["default", "snake_case", "camel_case", "UPPER_CASE", "lower_case"]
Row = dict[str, Any]
Rename = Callable[[Row], Row]


class CollectionNameProperties(Properties):
    """New names of topics."""

    routes = True

    prefix: str = declare("collection.naming.prefix", default="", summary="Prefix.")
    suffix: str = declare("collection.naming.suffix", default="", summary="Suffix.")
    style: Style = declare("collection.naming.style", default="default", summary="Style.")


class FieldNameProperties(Properties):
    """New names of fields."""

    prefix: str = declare("column.naming.prefix", default="", summary="Prefix.")
    suffix: str = declare("column.naming.suffix", default="", summary="Suffix.")
    style: Style = declare("column.naming.style", default="default", summary="Style.")


def in_snake_case(name: str) -> str:
    """Return ``name`` with underscores for dots, at words and at numbers."""
    return _BORDERS.sub(r"\1\3\5_\2\4\6", name).lower()


def in_camel_case(name: str) -> str:
    """Return ``name`` without dots and underscores, its words with capitals."""
    first, *others = _SEPARATORS.split(name)
    return first.lower() + "".join(_capital(word[0]) + word[1:].lower() for word in others if word)


def _capital(letter: str) -> str:
    # Java changes a letter only into one letter, and none that takes two UTF-16 units.
    found = letter.upper()
    return letter if len(found) > 1 or letter > "\uffff" else found


_STYLES: dict[str, Callable[[str], str]] = {
    "default": str,
    "snake_case": in_snake_case,
    "camel_case": in_camel_case,
    "UPPER_CASE": str.upper,
    "lower_case": str.lower,
}


def _renaming(properties: CollectionNameProperties | FieldNameProperties) -> Callable[[str], str]:
    style = _STYLES[properties.style]
    return lambda name: f"{properties.prefix}{style(name)}{properties.suffix}"


def _collection_name(
    properties: CollectionNameProperties, _context: RecordTransformContext
) -> RecordTransform:
    rename = lru_cache(maxsize=MAX_TOPICS)(_renaming(properties))
    return each(lambda record: msgspec.structs.replace(record, topic=rename(record.topic)))


class _FieldNames:
    """Rename the fields of keys and rows."""

    def __init__(self, properties: FieldNameProperties) -> None:
        self._rename = _renaming(properties)
        self._structs = SchemaMemory(self._struct)
        self._values = SchemaMemory(self._value)

    def _struct(self, schema: Schema) -> tuple[Schema, Rename]:
        names = [(self._rename(field.name), field) for field in schema.fields]
        fields = tuple(Field(name, field.schema) for name, field in names)
        without_repeats(schema.name, fields)
        renamed = projection((name, field.name, None) for name, field in names)
        return msgspec.structs.replace(schema, fields=fields), renamed

    def _value(self, schema: Schema) -> tuple[Schema, Rename]:
        """Rename the fields of an event's rows, or of a struct that is no event."""
        if not (schema.name or "").endswith(ENVELOPE):
            return self._structs.of(schema)
        images = {
            field.name: self._structs.of(field.schema)
            for field in schema.fields
            if field.name in {"before", "after"}
        }
        fields = tuple(
            Field(field.name, images[field.name][0]) if field.name in images else field
            for field in schema.fields
        )

        def rename(event: Row) -> Row:
            found = dict(event)
            for name, (_, renamed) in images.items():
                if found.get(name) is not None:
                    found[name] = renamed(found[name])
            return found

        return msgspec.structs.replace(schema, fields=fields), rename

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        schema = record.value_schema
        # As in Debezium, the key of a tombstone stays too.
        if schema is None or schema.kind is not ConnectKind.STRUCT:
            return record
        value_schema, rename = self._values.of(schema)
        value = None if record.value is None else rename(record.value)
        key_schema, key = record.key_schema, record.key
        if key_schema is not None and key_schema.kind is ConnectKind.STRUCT:
            key_schema, rename = self._structs.of(key_schema)
            key = None if key is None else rename(key)
        return msgspec.structs.replace(
            record, key_schema=key_schema, key=key, value_schema=value_schema, value=value
        )


NAMES = (
    debezium_spec(
        "CollectionNameTransformation",
        "Gives topics a prefix, a suffix and another style.",
        CollectionNameProperties,
        _collection_name,
        name="collection-name",
        package=_PACKAGE,
    ),
    debezium_spec(
        "FieldNameTransformation",
        "Gives the fields of keys and rows a prefix, a suffix and another style.",
        FieldNameProperties,
        lambda properties, _context: each(_FieldNames(properties)),
        name="field-name",
        package=_PACKAGE,
    ),
)
