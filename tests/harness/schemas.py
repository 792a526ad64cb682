"""Connect schemas in few words."""

from collections.abc import Mapping
from typing import Any

from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema


def of(kind: str, name: str | None = None, version: int | None = None, **more: Any) -> Schema:
    """Return the schema of a kind, such as ``int32``; ``more`` are fields of Schema."""
    return Schema(kind=ConnectKind[kind.upper()], name=name, version=version, **more)


def struct(fields: Mapping[str, Schema], name: str | None = None, **more: Any) -> Schema:
    made = tuple(Field(field, schema) for field, schema in fields.items())
    return of("struct", name, fields=made, **more)


def array(items: Schema, name: str | None = None, **more: Any) -> Schema:
    return of("array", name, items=items, **more)


def mapped(keys: Schema, values: Schema, **more: Any) -> Schema:
    return of("map", keys=keys, values=values, **more)


TEXT, BYTES, INT32, INT64 = of("string"), of("bytes"), of("int32"), of("int64")
MAYBE_TEXT = of("string", optional=True)
