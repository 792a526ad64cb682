"""Rewriting of values at any depth of a struct.

The functions that do it are built once for each schema.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import ConnectRecord, SchemaMemory

__all__ = ["Change", "StructRewrite"]

Convert = Callable[[Any], Any]
# Returns the new schema of values and the function that converts them; None for no change.
Change = Callable[[Schema], tuple[Schema, Convert] | None]


class StructRewrite:
    """Rewrite the values of records that are structs.

    ``inside`` also rewrites the elements of arrays and maps.
    """

    def __init__(self, change: Change, *, inside: bool) -> None:
        self._change, self._inside = change, inside
        self._known = SchemaMemory(self._made)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        """Return ``record`` with its struct rewritten."""
        assert record.value_schema is not None
        schema, convert = self._known.of(record.value_schema)
        if convert is None:
            return record
        return msgspec.structs.replace(record, value_schema=schema, value=convert(record.value))

    def _made(self, schema: Schema) -> tuple[Schema, Convert | None]:
        found = self._change(schema)
        if found is not None:
            return found
        if schema.kind is ConnectKind.STRUCT:
            return self._struct(schema)
        if not self._inside or schema.kind not in (ConnectKind.ARRAY, ConnectKind.MAP):
            return schema, None
        return self._collection(schema)

    def _struct(self, schema: Schema) -> tuple[Schema, Convert | None]:
        made = [(field, *self._known.of(field.schema)) for field in schema.fields]
        changes = any(of is not field.schema for field, of, _ in made)
        parts = [
            (field.name, field.schema.default, convert)
            for field, _, convert in made
            # Debezium reads every field by Struct.get, so null becomes the default of its field.
            if convert is not None or field.schema.default is not None
        ]
        if not parts and not changes:
            return schema, None
        if changes:
            fields = tuple(
                field if of is field.schema else Field(field.name, of) for field, of, _ in made
            )
            # A default of the struct would have the old types.
            schema = msgspec.structs.replace(schema, fields=fields, default=None)

        def converted(value: Mapping[str, Any]) -> dict[str, Any]:
            out = dict(value)
            for name, default, convert in parts:
                held = out.get(name)
                held = default if held is None else held
                out[name] = held if convert is None or held is None else convert(held)
            return out

        return schema, converted

    def _collection(self, schema: Schema) -> tuple[Schema, Convert | None]:
        """Return the function that rewrites the elements of ``schema``."""
        items = None if schema.items is None else self._known.of(schema.items)[1]
        keys = None if schema.keys is None else self._known.of(schema.keys)[1]
        values = None if schema.values is None else self._known.of(schema.values)[1]

        def element(convert: Convert | None, value: Any) -> Any:
            return value if convert is None or value is None else convert(value)

        if items is not None:
            return schema, lambda value: [element(items, each) for each in value]
        if keys is not None or values is not None:
            return schema, lambda value: {
                element(keys, key): element(values, each) for key, each in value.items()
            }
        return schema, None
