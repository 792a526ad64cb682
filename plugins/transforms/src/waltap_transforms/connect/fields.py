"""Transforms that add, rename, move or drop fields of keys and values."""

from collections.abc import Callable, Iterator
from typing import Any, Literal, Self

from msgspec.structs import replace
from pydantic import field_validator, model_validator

from waltap.base.property import Maybe, MaybeList, NonEmptyList, declare
from waltap.changes.mapping.connect_schema import TIMESTAMP, ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import (
    ConnectRecord,
    RecordTransform,
    RecordTransformContext,
    RecordUnfit,
    SchemaMemory,
)
from waltap_transforms.connect.record_parts import (
    Change,
    ConnectProperties,
    NullToDefault,
    Row,
    by_schema,
    copied,
    key_and_value,
    map_of,
    struct_of,
)
from waltap_transforms.specs import connect_spec
from waltap_transforms.structs import projection, required_struct

FLATTENS = "flatten"

# (name, steps to the value, default that replaces null).
Leaf = tuple[str, tuple[str, ...], Any]


class FlattenProperties(ConnectProperties):
    """Delimiter between the joined names of fields."""

    delimiter: str = declare(
        "delimiter",
        default=".",
        summary="Separator between the names of a struct and of its field.",
    )


def _flattening(properties: FlattenProperties) -> Change:
    delimiter = properties.delimiter

    def made(schema: Schema) -> tuple[Schema, Callable[[Row, ConnectRecord], Row]]:
        leaves: list[Leaf] = []
        default = schema.default if isinstance(schema.default, dict) else None
        fields = _fields(schema, (), delimiter, leaves, optional=schema.optional, given=default)
        updated = required_struct(schema, fields)
        return updated, lambda row, _record: {
            name: _at(row, steps, default) for name, steps, default in leaves
        }

    def plain(found: Row, _record: ConnectRecord) -> Row:
        row: Row = {}
        _flatten_map(found, "", delimiter, row)
        return row

    return by_schema(FLATTENS, made, plain)


def _at(row: Any, steps: tuple[str, ...], default: Any) -> Any:
    """Return the value at ``steps``, or null below a null struct."""
    *parents, last = steps
    for step in parents:
        row = row.get(step)
        if row is None:
            return None
    # The default of a leaf applies only within a struct that is present.
    value = row.get(last)
    return default if value is None else value


def _fields(
    schema: Schema,
    above: tuple[str, ...],
    delimiter: str,
    leaves: list[Leaf],
    *,
    optional: bool,
    given: dict[str, Any] | None,
) -> Iterator[Field]:
    """Yield the flat fields of ``schema`` and fill ``leaves``.

    ``given`` is the default of ``schema``; fields without a default take theirs from it.
    """
    for field in schema.fields:
        steps = (*above, field.name)
        name, own = delimiter.join(steps), field.schema
        # A required field of an optional struct has no value when the struct is null.
        may_lack = optional or own.optional
        default = own.default
        if default is None and given is not None:
            default = given.get(field.name)
        if own.kind is ConnectKind.MAP:
            # The keys of a map differ from record to record, so they cannot become fields of a schema.
            raise RecordUnfit(f"the field {name} is a map, which cannot be flattened")
        if own.kind is ConnectKind.STRUCT:
            inner = default if isinstance(default, dict) else None
            yield from _fields(own, steps, delimiter, leaves, optional=may_lack, given=inner)
            continue
        leaves.append((name, steps, own.default))
        yield Field(name, replace(own, optional=may_lack, default=default))


def _flatten_map(found: Row, prefix: str, delimiter: str, out: Row) -> None:
    for key, value in found.items():
        name = f"{prefix}{delimiter}{key}" if prefix else key
        if value.__class__ is dict:
            _flatten_map(value, name, delimiter, out)
        else:
            out[name] = value


FLATTEN = key_and_value(
    "Flatten",
    "Puts the fields of structs within the {record_part} next to one another.",
    FlattenProperties,
    _flattening,
)


INSERTS = "insert fields into"


class InsertFieldProperties(NullToDefault):
    """Fields to add; a name may end in ! (required) or ? (optional, the default)."""

    topic: Maybe[str] = declare("topic.field", summary="Field for the topic.")
    partition: Maybe[str] = declare("partition.field", summary="Field for the partition.")
    offset: Maybe[str] = declare(
        "offset.field",
        summary="Field for the offset, which records have only behind Kafka: refused.",
    )
    timestamp: Maybe[str] = declare(
        "timestamp.field",
        summary="Field for the record's timestamp, null where the record has none.",
    )
    static: Maybe[str] = declare("static.field", summary="Field for static.value.")
    static_value: Maybe[str] = declare("static.value", summary="Text that static.field gets.")

    @field_validator("offset")
    @classmethod
    def _none(cls, value: str | None) -> str | None:
        # Kafka gives a record its offset only after the transforms.
        if value is not None:
            raise ValueError("records have no offset before they are in Kafka")
        return value

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if all(each is None for each in (self.topic, self.partition, self.timestamp, self.static)):
            raise ValueError("no field to insert is named")
        if self.static is not None and self.static_value is None:
            raise ValueError("static.value is missing: static.field needs it")
        return self


# Source of a field → its schema.
INSERTED = {
    "topic": Schema(kind=ConnectKind.STRING),
    "partition": Schema(kind=ConnectKind.INT32),
    "timestamp": Schema(kind=ConnectKind.INT64, name=TIMESTAMP, version=1),
    "static": Schema(kind=ConnectKind.STRING),
}


def _inserting(properties: InsertFieldProperties) -> Change:
    inserted = [
        (
            what,
            Field(
                name[:-1] if name.endswith(("?", "!")) else name,
                replace(schema, optional=not name.endswith("!")),
            ),
        )
        for what, schema in INSERTED.items()
        if (name := getattr(properties, what)) is not None
    ]
    static = properties.static_value

    def made(schema: Schema) -> tuple[Schema, Callable[[Row, ConnectRecord], Row]]:
        # `required_struct` refuses a new field that has the name of an existing one.
        added = required_struct(schema, (*schema.fields, *(field for _, field in inserted)))
        copy = copied(schema, with_defaults=properties.null_to_default)
        return added, lambda row, record: fill(copy(row), record)

    def fill(row: Row, record: ConnectRecord) -> Row:
        values = {
            "topic": record.topic,
            "partition": record.partition,
            "timestamp": record.timestamp,
            "static": static,
        }
        for what, field in inserted:
            # A missing key is null, so a null source needs no entry.
            if values[what] is not None:
                row[field.name] = values[what]
        return row

    return by_schema(INSERTS, made, lambda found, record: fill(dict(found), record))


INSERT_FIELD = key_and_value(
    "InsertField",
    "Adds topic, partition, timestamp or a text to the {record_part} as fields.",
    InsertFieldProperties,
    _inserting,
)


REPLACES = "leave fields out of or rename them in"
IGNORED = "(Kafka Connect 4 ignores the old name)"


class ReplaceFieldProperties(NullToDefault):
    """Fields to keep, and their new names."""

    exclude: MaybeList = declare(
        "exclude",
        deprecated={"blacklist": f"exclude {IGNORED}"},
        summary="Fields that are left out; this goes before include.",
    )
    include: MaybeList = declare(
        "include",
        deprecated={"whitelist": f"include {IGNORED}"},
        summary="Fields that stay; without any, all.",
    )
    renames: MaybeList = declare(
        "renames",
        summary="Fields that get another name, as old:new.",
        examples=("id:customer_id",),
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        self.pairs()
        return self

    def pairs(self) -> dict[str, str]:
        """Return the new name of each renamed field.

        Raises: ValueError for an entry that is not ``old:new``.
        """
        found = {}
        for entry in self.renames:
            old, colon, new = entry.partition(":")
            if not (old and colon and new) or ":" in new:
                raise ValueError(f"renames: {entry!r} is not old:new")
            found[old] = new
        return found


def _replacing(properties: ReplaceFieldProperties) -> Change:
    exclude, include = frozenset(properties.exclude), frozenset(properties.include)
    renames = properties.pairs()
    olds = {new: old for old, new in renames.items()}

    def stays(name: str) -> bool:
        return name not in exclude and (not include or name in include)

    def made(schema: Schema) -> tuple[Schema, Callable[[Row, ConnectRecord], Row]]:
        remaining = [
            Field(renames.get(field.name, field.name), field.schema)
            for field in schema.fields
            if stays(field.name)
        ]
        updated = required_struct(schema, remaining)
        known = {field.name: field.schema for field in schema.fields}
        columns = []
        for field in remaining:
            old = olds.get(field.name, field.name)
            # Connect reads a new field by the reverse of `renames`. If a field already has a new name of
            # another one, it would read the wrong value or type.
            if known.get(old) != field.schema:
                raise RecordUnfit(f"the field {field.name} would stay, and be {old} as well")
            default = known[old].default if properties.null_to_default else None
            columns.append((field.name, old, default))

        convert = projection(columns)
        return updated, lambda row, _record: convert(row)

    def plain(found: Row, _record: ConnectRecord) -> Row:
        return {renames.get(k, k): v for k, v in found.items() if stays(k)}

    return by_schema(REPLACES, made, plain)


REPLACE_FIELD = key_and_value(
    "ReplaceField",
    "Leaves fields of the {record_part} out, or calls them otherwise.",
    ReplaceFieldProperties,
    _replacing,
)


COPIES = "copy fields from"


class ValueToKeyProperties(NullToDefault):
    """Fields of the key."""

    fields: NonEmptyList = declare(
        "fields",
        summary="Fields of the value that make the key, in order.",
    )


def value_to_key(
    properties: ValueToKeyProperties, _context: RecordTransformContext
) -> RecordTransform:
    """Return the transform that builds keys from values."""
    names = tuple(dict.fromkeys(properties.fields))

    def made(schema: Schema) -> tuple[Schema, Callable[[Row], Row]]:
        known = {field.name: field.schema for field in schema.fields}
        for name in names:
            if name not in known:
                raise RecordUnfit(f"the value has no field {name}")
        key = Schema(
            kind=ConnectKind.STRUCT, fields=tuple(Field(name, known[name]) for name in names)
        )
        given = properties.null_to_default
        return key, projection((n, n, known[n].default if given else None) for n in names)

    memory = SchemaMemory(made)

    def keyed(r: ConnectRecord) -> ConnectRecord:
        schema: Schema | None = None
        if r.value_schema is None:
            row = map_of(r.value, COPIES)
            key = {name: row.get(name) for name in names}
        else:
            row = struct_of(r.value_schema, r.value, COPIES)
            schema, key_of = memory.of(r.value_schema)
            key = key_of(row)
        return ConnectRecord(
            r.topic, schema, key, r.value_schema, r.value, r.headers, r.partition, r.timestamp
        )

    return lambda records: [keyed(record) for record in records]


VALUE_TO_KEY = connect_spec(
    "ValueToKey", "Makes the key of fields of the value.", ValueToKeyProperties, value_to_key
)


class SetSchemaMetadataProperties(NullToDefault):
    """Name and version of the schema."""

    name: Maybe[str] = declare("schema.name", summary="Name of the schema.")
    version: Maybe[int] = declare("schema.version", summary="Version of the schema.")

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self.name is None and self.version is None:
            raise ValueError("neither schema.name nor schema.version is given")
        return self


def _naming(properties: SetSchemaMetadataProperties) -> Change:
    def made(schema: Schema) -> tuple[Schema, Any]:
        name = schema.name if properties.name is None else properties.name
        version = schema.version if properties.version is None else properties.version
        renamed = replace(schema, name=name, version=version)
        if schema.kind is not ConnectKind.STRUCT:
            raise RecordUnfit(f"it names schemas of structs, and found {schema.kind.value}")
        return renamed, copied(schema, with_defaults=properties.null_to_default)

    memory = SchemaMemory(made)

    def change(_record: ConnectRecord, schema: Schema | None, value: Any) -> tuple[Any, Any]:
        if schema is None:
            # A tombstone has no schema and needs none.
            if value is None:
                return schema, value
            raise RecordUnfit("it needs a schema to name, and there is none")
        renamed, copy = memory.of(schema)
        return renamed, value if value is None else copy(value)

    return change


SCHEMA_METADATA = key_and_value(
    "SetSchemaMetadata",
    "Gives the schema of the {record_part} a name or version.",
    SetSchemaMetadataProperties,
    _naming,
)


# Paths to fields in the syntax of ``field.syntax.version``.
#
# V1 is the name of a field. V2 has steps with dots between them.


def field_steps(path: str, version: str) -> tuple[str, ...]:
    """Split ``path`` into its steps.

    In V2, ``a.b`` has two steps, and ```a.b`.c`` has two as well. Raises: ValueError for a backtick
    that is not closed.
    """
    if version == "V1":
        return (path,)
    steps: list[str] = []
    at = 0
    while at < len(path):
        if path[at] == "`":
            step, at = _quoted(path, at)
        else:
            dot = path.find(".", at)
            end = len(path) if dot < 0 else dot
            step, at = path[at:end], end + 1
        steps.append(step)
    # The loop ends at the last dot; Connect reads an empty name after it.
    if path.endswith("."):
        steps.append("")
    if not steps:
        raise ValueError("the path of the field is empty")
    return tuple(steps)


def _quoted(path: str, at: int) -> tuple[str, int]:
    """Return the step in backticks at ``at``, and the start of the next step."""
    step, start, index = "", at + 1, at + 1
    # A backtick closes the step only before a dot or at the end of the path, so that names may have
    # backticks. A backslash before it escapes one that would close the step.
    while True:
        index = path.find("`", index)
        if index < 0 or (index == len(path) - 1 and path[index - 1] == "\\"):
            raise ValueError(
                f"the backtick at {at} of {path!r} has no other one; a backslash before it escapes it"
            )
        if index == len(path) - 1:
            return step + path[start:index], index + 1
        if path[index + 1] != ".":
            index += 1
        elif path[index - 1] == "\\":
            step += path[start : index - 1] + "`"
            index += 1
            start = index
        else:
            return step + path[start:index], index + 2


def found_field(schema: Schema, steps: tuple[str, ...]) -> Field | None:
    """Return the field at ``steps``, None if it is missing.

    Raises: RecordUnfit for a step into a field that is not a struct.
    """
    found = None
    for step in steps:
        if schema.kind is not ConnectKind.STRUCT:
            raise RecordUnfit(f"fields are looked for in a struct, and found {schema.kind.value}")
        found = next((field for field in schema.fields if field.name == step), None)
        if found is None:
            return None
        schema = found.schema
    return found


def found_in_struct(schema: Schema, row: Any, steps: tuple[str, ...], *, with_default: bool) -> Any:
    """Return the value at ``steps``.

    It is null if a struct on the path is null and has no default.
    """
    for number, step in enumerate(steps, 1):
        if row is None:
            return None
        field = next(field for field in schema.fields if field.name == step)
        row, schema = row.get(step), field.schema
        # A null struct on the path takes its default even if ``with_default`` is false: Connect's
        # property concerns only the last field.
        if row is None and (with_default or number < len(steps)):
            row = schema.default
    return row


def found_in_map(value: dict[str, Any], steps: tuple[str, ...]) -> Any:
    """Return the value at ``steps`` of a map without schema."""
    found: Any = value
    for step in steps:
        if found is None:
            return None
        if found.__class__ is not dict:
            raise RecordUnfit(f"fields are looked for in a map, and found {type(found).__name__}")
        found = found.get(step)
    return found


EXTRACTS = "take a field out of"


class ExtractFieldProperties(NullToDefault):
    """Field that replaces the whole."""

    field: str = declare("field", summary="Name of the field; with V2, the path to it.")
    version: Literal["V1", "V2"] = declare(
        "field.syntax.version",
        default="V1",
        summary="V1: field is a name. V2: steps into structs with dots between them, in backticks where a "
        "name has dots.",
    )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        # A bad path fails when the profile is read, not at the first record.
        field_steps(self.field, self.version)
        return self


class HoistFieldProperties(ConnectProperties):
    """Field that contains the whole."""

    field: str = declare("field", summary="Name of the only field of the struct that is made.")


def _extracted(properties: ExtractFieldProperties) -> Change:
    steps = field_steps(properties.field, properties.version)

    def made(schema: Schema) -> Field:
        found = found_field(schema, steps)
        if found is None:
            raise RecordUnfit(f"there is no field {properties.field}")
        return found

    # The lookup of a path depends only on the schema, so it is done once for each schema.
    memory = SchemaMemory(made)

    def change(_record: ConnectRecord, schema: Schema | None, value: Any) -> tuple[Any, Any]:
        if schema is None:
            return None, None if value is None else found_in_map(map_of(value, EXTRACTS), steps)
        # Null has no fields to check, but the schema of the field is still needed.
        if value is not None:
            struct_of(schema, value, EXTRACTS)
        field = memory.of(schema)
        with_default = properties.null_to_default
        return field.schema, found_in_struct(schema, value, steps, with_default=with_default)

    return change


def _hoisted(properties: HoistFieldProperties) -> Change:
    name = properties.field
    memory = SchemaMemory(
        lambda schema: Schema(kind=ConnectKind.STRUCT, fields=(Field(name, schema),))
    )

    def change(_record: ConnectRecord, schema: Schema | None, value: Any) -> tuple[Any, Any]:
        return None if schema is None else memory.of(schema), {name: value}

    return change


NESTED_FIELD = (
    *key_and_value(
        "ExtractField",
        "Replaces the {record_part} by one of its fields.",
        ExtractFieldProperties,
        _extracted,
    ),
    *key_and_value(
        "HoistField",
        "Makes the {record_part} the only field of a struct.",
        HoistFieldProperties,
        _hoisted,
    ),
)
