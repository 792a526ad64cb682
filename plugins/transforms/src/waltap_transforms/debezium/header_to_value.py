"""HeaderToValue: move or copy headers into the value."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

import msgspec
from pydantic import model_validator

from waltap.base.cache import BoundedDict
from waltap.base.property import Properties, declare
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import ConnectHeader, ConnectRecord, RecordUnfit
from waltap_transforms.specs import FilledList, debezium_spec, each
from waltap_transforms.structs import field_of, required_struct, value_of

# Debezium's name for the value itself.
ROOT = "payload"
MAX_SCHEMAS = 1000


class HeaderToValueProperties(Properties):
    """Headers to read, and their fields."""

    headers: FilledList = declare("headers", summary="Headers to take.", min_length=1)
    fields: FilledList = declare(
        "fields",
        summary="The fields that they become, in the same order; `after.name` is a field of a struct.",
        min_length=1,
    )
    operation: Literal["move", "copy"] = declare(
        "operation", summary="Whether the headers go (move) or stay (copy)."
    )

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if len(self.headers) != len(self.fields):
            raise ValueError("headers and fields must be as many")
        if any(" " in name for name in self.headers + self.fields):
            raise ValueError("a name of a header or field has a blank")
        return self


class _HeaderField(NamedTuple):
    """Describe a field to add."""

    # Names of the structs around the field, and its own.
    path: tuple[str, ...]
    schema: Schema | None
    value: Any


class HeaderToValue:
    """Add fields with the values of headers."""

    def __init__(self, properties: HeaderToValueProperties) -> None:
        self._moves = properties.operation == "move"
        self._fields: dict[str, tuple[str, ...]] = {}
        for header, field in zip(properties.headers, properties.fields, strict=True):
            # The first of several fields for one header wins.
            self._fields.setdefault(header, tuple(field.split(".")))
        self._known = BoundedDict[
            int, tuple[Schema, list[tuple[dict[Any, Schema | None], Schema]]]
        ](MAX_SCHEMAS)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        if record.value is None:
            return record
        schema = record.value_schema
        if schema is None or schema.kind is not ConnectKind.STRUCT:
            raise RecordUnfit("the value is no struct")
        entries = [
            _HeaderField(self._fields[name], of, value)
            for name, of, value in record.headers
            if name in self._fields
        ]
        if not entries:
            return record
        # Records without one of the headers keep their schema.
        made = self._schema(schema, entries)
        headers: tuple[ConnectHeader, ...] = record.headers
        if self._moves:
            headers = tuple(each for each in headers if each[0] not in self._fields)
        value = _value(ROOT, record.value, schema, made, entries, 0)
        return msgspec.structs.replace(record, value_schema=made, value=value, headers=headers)

    def _schema(self, schema: Schema, entries: Sequence[_HeaderField]) -> Schema:
        asked = {entry.path: entry.schema for entry in entries}
        entry = self._known.get(id(schema))
        if entry is None:
            entry = self._known[id(schema)] = schema, []
        # Debezium keeps the first schema that it builds, so an earlier one with all fields is used again.
        for has, made in entry[1]:
            if all(path in has and has[path] == of for path, of in asked.items()):
                return made
        _no_scalar_parents(schema, entries)
        made = _with_fields(ROOT, schema, entries, 0)
        if len(entry[1]) < MAX_SCHEMAS:
            entry[1].append((asked, made))
        return made


def _no_scalar_parents(schema: Schema, entries: Sequence[_HeaderField]) -> None:
    for path, _, _ in entries:
        inside: Schema | None = schema
        for name in path[:-1]:
            field = None if inside is None else field_of(inside, name)
            inside = None if field is None else field.schema
            if inside is not None and inside.kind is not ConnectKind.STRUCT:
                raise RecordUnfit(f"{name} is {inside.kind.value}: it can have no field {path[-1]}")


def _here(path: tuple[str, ...], struct: str, level: int) -> str | None:
    """Return the field's name if it belongs to ``struct`` itself."""
    # Only the name of the nearest struct is compared, not the whole path.
    if len(path) == 1 and struct == ROOT:
        return path[0]
    if len(path) == level + 1 and path[max(level - 1, 0)] == struct:
        return path[level]
    return None


def _contains(name: str, entries: Sequence[_HeaderField]) -> bool:
    return any(len(path) > 1 and f"{name}." in ".".join(path) for path, _, _ in entries)


def _new_parents(
    struct: str, schema: Schema, entries: Sequence[_HeaderField], level: int
) -> list[str]:
    found: list[str] = []
    for path, _, _ in entries:
        if len(path) < 2 or not (
            (level == 0 and struct == ROOT) or (0 < level < len(path) and path[level - 1] == struct)
        ):
            continue
        name = path[level]
        if level < len(path) - 1 and field_of(schema, name) is None and name not in found:
            found.append(name)
    return found


def _below(path: tuple[str, ...], parent: str, struct: str, level: int) -> str | None:
    """Return the field's name in a new struct ``parent``."""
    if level == 0 and struct == ROOT:
        return path[1] if len(path) > 1 and path[0] == parent else None
    if level > 0 and level + 1 < len(path) and ".".join(path[: level + 1]) == parent:
        return path[level + 1]
    return None


def _with_fields(
    struct: str, schema: Schema, entries: Sequence[_HeaderField], level: int
) -> Schema:
    fields = [
        Field(field.name, _with_fields(field.name, field.schema, entries, level + 1))
        if field.schema.kind is ConnectKind.STRUCT and _contains(field.name, entries)
        else field
        for field in schema.fields
    ]
    names = {field.name for field in fields}
    for path, of, _ in entries:
        name = _here(path, struct, level)
        # A field that exists keeps its schema; only its value is replaced.
        if name is not None and name not in names:
            fields.append(
                Field(
                    name, of if of is not None else Schema(kind=ConnectKind.STRING, optional=True)
                )
            )
            names.add(name)
    for parent in _new_parents(struct, schema, entries, level):
        inside = [(_below(path, parent, struct, level), of) for path, of, _ in entries]
        made = tuple(Field(name, of) for name, of in inside if name is not None and of is not None)
        fields.append(Field(parent, Schema(kind=ConnectKind.STRUCT, optional=True, fields=made)))
    return required_struct(schema, fields)


def _value(
    struct: str,
    value: Mapping[str, Any],
    schema: Schema,
    made: Schema,
    entries: Sequence[_HeaderField],
    level: int,
) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for field in schema.fields:
        held: Any = value_of(field, value)
        if held is None:
            continue
        if field.schema.kind is ConnectKind.STRUCT and _contains(field.name, entries):
            inside = field_of(made, field.name)
            assert inside is not None
            held = _value(field.name, held, field.schema, inside.schema, entries, level + 1)
        out[field.name] = held
    for path, _, held in entries:
        name = _here(path, struct, level)
        if name is not None:
            out[name] = held
    for parent in _new_parents(struct, schema, entries, level):
        inside_of = [(_below(path, parent, struct, level), held) for path, _, held in entries]
        out[parent] = {name: held for name, held in inside_of if name is not None}
    return out


HEADER_TO_VALUE = debezium_spec(
    "HeaderToValue",
    "Moves or copies headers into fields of the value.",
    HeaderToValueProperties,
    lambda properties, _context: each(HeaderToValue(properties)),
)
