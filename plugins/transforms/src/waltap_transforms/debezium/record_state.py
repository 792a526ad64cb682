"""ExtractNewRecordState and ExtractChangedRecordState: rows of change events."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from pydantic import field_validator, model_validator

from waltap.base.property import Maybe, MaybeList, Properties, Switch, declare
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import (
    ConnectHeader,
    ConnectRecord,
    RecordUnfit,
    SchemaMemory,
)
from waltap_transforms.specs import debezium_spec, each_event
from waltap_transforms.structs import (
    defaults_of,
    field_of,
    filled,
    is_envelope,
    member,
    projection,
    required_struct,
)


class ExtractChangedRecordStateProperties(Properties):
    """Headers to write."""

    changed: Maybe[str] = declare(
        "header.changed.name",
        summary="Header with the names of the columns that changed; without it, none is written.",
    )
    unchanged: Maybe[str] = declare(
        "header.unchanged.name",
        summary="Header with the names of the columns that did not change; without it, none is written.",
    )


class ExtractChangedRecordState:
    """Add headers with the changed and unchanged columns of updates."""

    def __init__(self, properties: ExtractChangedRecordStateProperties) -> None:
        self._changed = _list_schema(properties.changed)
        self._unchanged = _list_schema(properties.unchanged)
        self._names = SchemaMemory(_names)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        assert record.value_schema is not None
        # Other events, and updates without an old row, get empty lists, as in Debezium.
        changed, unchanged = _split_by_change(record.value, self._names.of(record.value_schema))
        headers = record.headers
        for schema, names in ((self._changed, changed), (self._unchanged, unchanged)):
            if schema is not None:
                headers += ((schema.name or "", schema, names),)
        return msgspec.structs.replace(record, headers=headers)


def _list_schema(name: str | None) -> Schema | None:
    # A blank name means no header.
    if name is None or not name.strip():
        return None
    text = Schema(kind=ConnectKind.STRING, optional=True)
    return Schema(kind=ConnectKind.ARRAY, optional=True, name=name, items=text)


def _names(envelope: Schema) -> tuple[str, ...]:
    member(envelope, "before", "an event", ConnectKind.STRUCT)
    row = member(envelope, "after", "an event", ConnectKind.STRUCT).schema
    return tuple(field.name for field in row.fields)


def _split_by_change(
    event: Mapping[str, Any], names: tuple[str, ...]
) -> tuple[list[str], list[str]]:
    before, after = event.get("before"), event.get("after")
    changed: list[str] = []
    unchanged: list[str] = []
    # Without an old row nothing is known about the columns.
    if before is not None and after is not None:
        for name in names:
            same = _equal(after.get(name), before.get(name))
            (unchanged if same else changed).append(name)
    return changed, unchanged


def _equal(one: Any, other: Any) -> bool:
    """Return whether two values of a column are equal in Java."""
    # Double.equals differs from ==: NaN equals itself, and 0.0 does not equal -0.0.
    if isinstance(one, float) and isinstance(other, float):
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return one == other and math.copysign(1, one) == math.copysign(1, other)
    return bool(one == other)


CHANGED_FIELDS = debezium_spec(
    "ExtractChangedRecordState",
    "Writes headers with the names of the columns that an update changed, or did not.",
    ExtractChangedRecordStateProperties,
    lambda properties, _context: each_event(ExtractChangedRecordState(properties)),
)


def _inserted(record: ConnectRecord) -> ConnectRecord:
    if record.value.get("op") != "r":
        return record
    return msgspec.structs.replace(record, value={**record.value, "op": "c"})


READ_TO_INSERT = debezium_spec(
    "ReadToInsertEvent",
    "Makes inserts of the rows of snapshots.",
    None,
    lambda _properties, _context: each_event(_inserted),
    name="read-to-insert",
    package="io.debezium.connector.mysql.transforms",
)


# Fields that need no struct before them, and their structs: `transaction`, and the event itself. Every
# other field without a struct is one of `source`.
TRANSACTION = frozenset({"id", "data_collection_order", "total_order"})
EVENT = frozenset({"op", "ts_ms", "ts_us", "ts_ns"})


class EventField(msgspec.Struct, frozen=True):
    """Describe one member of a change event, and its new name."""

    # None for a field of the event itself.
    struct: str | None
    field: str
    # Name of the field or header that is written.
    name: str
    # False if the struct lacks the field; then the event itself has it, from another transform.
    inside: bool = True

    def schema_in(self, envelope: Schema) -> Schema | None:
        """Return the schema of the written field.

        None means that events of ``envelope`` lack the field. Raises: RecordUnfit if they lack the struct.
        """
        found = field_of(self.parent(envelope), self.field) or field_of(envelope, self.field)
        if found is None:
            return None
        schema = found.schema
        if schema.kind is ConnectKind.STRUCT:
            raise RecordUnfit(f"{self.field} is a struct; name one of its fields")
        # Optional without a default: the struct, such as `transaction`, may be null.
        return msgspec.structs.replace(schema, optional=True, default=None)

    def of(self, event: Mapping[str, Any]) -> Any:
        """Return the value in ``event``, null if the struct is null."""
        if self.struct is None:
            return event.get(self.field)
        parent = event.get(self.struct)
        if parent is None:
            return None
        return parent.get(self.field) if self.inside else event.get(self.field)

    def parent(self, envelope: Schema) -> Schema:
        if self.struct is None:
            return envelope
        parent = field_of(envelope, self.struct)
        if parent is None or parent.schema.kind is not ConnectKind.STRUCT:
            raise RecordUnfit(f"{self.struct} is no struct of {envelope.name}")
        return parent.schema


def bound(fields: Iterable[EventField], envelope: Schema) -> tuple[tuple[EventField, Schema], ...]:
    """Return the members that events have, with the schemas of written fields."""
    found = []
    for field in fields:
        schema = field.schema_in(envelope)
        if schema is not None:
            inside = field_of(field.parent(envelope), field.field) is not None
            found.append((msgspec.structs.replace(field, inside=inside), schema))
    return tuple(found)


def event_fields(prefix: str, entries: Iterable[str]) -> tuple[EventField, ...]:
    """Parse ``entries`` into members.

    Raises: ValueError for an entry that is not ``[struct.]field[:name]``.
    """
    found = []
    for entry in entries:
        path, *new = _parts(entry, ":")
        if len(new) > 1:
            raise ValueError(f"{entry!r} is not [struct.]field[:name]")
        names = _parts(path, ".")
        field = names[0] if len(names) == 1 else names[1]
        struct = _struct_of(field) if len(names) == 1 else names[0]
        # The struct is part of the name only if the entry names it: `source.table` is `source_table`.
        plain = field if len(names) == 1 else f"{struct}_{field}"
        found.append(EventField(struct, field, prefix + (new[0] if new else plain)))
    return tuple(found)


def _parts(text: str, separator: str) -> list[str]:
    # Java removes empty parts at the end.
    parts = text.split(separator)
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts


def _struct_of(field: str) -> str | None:
    if field in TRANSACTION:
        return "transaction"
    return None if field in EVENT else "source"


DELETED = "__deleted"
_DELETED_FIELD = Field(DELETED, Schema(kind=ConnectKind.STRING, optional=True))
_TEXT = Schema(kind=ConnectKind.STRING)
# Most combinations of a schema and the names in a header that the cache has.
MAX_SCHEMAS = 1000
Mode = Literal["drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone"]
IGNORED = "(Debezium 3 ignores the old name)"
# delete.handling.mode and drop.tombstones of Debezium 1 and 2 → the mode that replaces both.
OLDER_MODES: dict[tuple[str, bool], Mode] = {
    ("drop", True): "drop",
    ("drop", False): "tombstone",
    ("rewrite", True): "rewrite",
    ("rewrite", False): "rewrite-with-tombstone",
    ("none", True): "tombstone",
    ("none", False): "tombstone",
}


class ExtractNewRecordStateProperties(Properties):
    """Handling of deletes, and additions to rows."""

    mode: Mode = declare(
        "delete.tombstone.handling.mode",
        default="tombstone",
        summary="What deletes and their tombstones become: nothing (drop); one tombstone, with "
        "the rows' schema (tombstone) or without (delete-to-tombstone); the old row, "
        "with `__deleted` in every row, alone (rewrite) or followed by the tombstone "
        "(rewrite-with-tombstone).",
    )
    old_tombstones: Maybe[bool] = declare(
        "drop.tombstones",
        deprecated={"drop.tombstones": f"delete.tombstone.handling.mode {IGNORED}"},
        summary="Older name: leave tombstones out. With delete.handling.mode it means "
        "delete.tombstone.handling.mode, where that is not given.",
    )
    old_deletes: Maybe[Literal["drop", "rewrite", "none"]] = declare(
        "delete.handling.mode",
        deprecated={"delete.handling.mode": f"delete.tombstone.handling.mode {IGNORED}"},
        summary="Older name: leave deletes out, write the old row, or make a tombstone of them (none).",
    )
    old_source_fields: MaybeList = declare(
        "add.source.fields",
        deprecated={"add.source.fields": f"add.fields {IGNORED}"},
        summary="Older name: members of `source` that rows get as fields; write them in add.fields.",
    )
    old_operation: Switch = declare(
        "operation.header",
        deprecated={"operation.header": f"add.headers=op {IGNORED}"},
        summary="Older name: write `op` as a header; write add.headers=op.",
    )
    route_by_field: str = declare(
        "route.by.field",
        default="",
        summary="Column whose value is the topic of the row; where it is empty, the topic stays.",
    )
    fields_prefix: str = declare(
        "add.fields.prefix", default="__", summary="What the names of added fields begin with."
    )
    fields: MaybeList = declare(
        "add.fields",
        summary="Members of the event that rows get as fields: `op`, `table`, `source.ts_ms`, "
        "`transaction.id`, with another name `op:OPERATION`.",
        examples=("op,table,source.ts_ms:changed_at",),
    )
    headers_prefix: str = declare(
        "add.headers.prefix", default="__", summary="What the names of added headers begin with."
    )
    headers: MaybeList = declare(
        "add.headers",
        summary="Members of the event that records get as headers, written as in `add.fields`.",
    )
    drop_fields_header: Maybe[str] = declare(
        "drop.fields.header.name",
        summary="Header with a list of fields to leave out, such as ExtractChangedRecordState writes.",
    )
    drop_fields_from_key: Switch = declare(
        "drop.fields.from.key", summary="Leave these fields out of keys, too."
    )
    drop_fields_optional: bool = declare(
        "drop.fields.keep.schema.compatible",
        default=True,
        summary="Leave out only fields that may be null; false: any of them.",
    )
    null_to_default: bool = declare(
        "replace.null.with.default",
        default=True,
        summary="In the rewrite modes, write the column's default for NULL.",
    )

    @model_validator(mode="after")
    def _of_older_names(self) -> "ExtractNewRecordStateProperties":
        older = {self.old_tombstones, self.old_deletes} != {None}
        # The present property wins over the older ones.
        if older and "mode" not in self.model_fields_set:
            drops = self.old_tombstones is not False
            mode = OLDER_MODES[self.old_deletes or "drop", drops]
            object.__setattr__(self, "mode", mode)
        # The older property names the fields without their struct.
        sources = tuple(f"source.{each}:{each}" for each in self.old_source_fields)
        object.__setattr__(self, "fields", (*self.fields, *sources))
        if self.old_operation and "op" not in self.headers:
            object.__setattr__(self, "headers", (*self.headers, "op"))
        return self

    @field_validator("fields", "headers", "old_source_fields")
    @classmethod
    def _readable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        event_fields("", value)
        return value


class ExtractNewRecordState:
    """Replace change events by rows."""

    def __init__(self, properties: ExtractNewRecordStateProperties) -> None:
        mode = properties.mode
        self._mode, self._rewrites = mode, mode.startswith("rewrite")
        self._route = properties.route_by_field
        self._fields = event_fields(properties.fields_prefix, properties.fields)
        self._headers = event_fields(properties.headers_prefix, properties.headers)
        self._fills = properties.null_to_default and self._rewrites
        # A tombstone has no event to read; of the added headers only `op` is known.
        self._on_tombstones: tuple[ConnectHeader, ...] = tuple(
            (each.name, _TEXT, "d") for each in self._headers if each.field == "op"
        )
        self._plans = SchemaMemory(self._plan)
        self._drop = None
        header = properties.drop_fields_header
        if header is not None and header.strip():
            self._drop = _DropByHeader(
                header,
                from_key=properties.drop_fields_from_key,
                only_optional=properties.drop_fields_optional,
            )

    def __call__(self, records: list[ConnectRecord]) -> list[ConnectRecord]:
        """Return the rows of a batch, in order. Raises: RecordUnfit."""
        out = []
        for record in records:
            if record.value is None:
                # Every other mode drops tombstones: a delete may become one itself.
                if self._mode == "rewrite-with-tombstone":
                    headers = record.headers + self._on_tombstones
                    out.append(msgspec.structs.replace(record, headers=headers))
            elif not is_envelope(record):
                out.append(record)
            else:
                made = self._change(record)
                if made is not None:
                    out.append(made)
        return out

    def _change(self, record: ConnectRecord) -> ConnectRecord | None:
        assert record.value_schema is not None
        event, plan = record.value, self._plans.of(record.value_schema)
        row = event.get("after")
        deleted = row is None
        if deleted:
            row = event.get("before")
            if row is None or self._mode == "drop":  # a truncate has neither
                return None
        image = plan.before if deleted else plan.after
        schema: Schema | None
        value: Any
        if deleted and not self._rewrites:
            schema, value = image.row if self._mode == "tombstone" else None, None
        else:
            schema, value = image.schema, image.write(row, event, "true" if deleted else "false")
        topic = record.topic
        # Debezium reads the column from a deleted row as it came, and from other rows as written.
        if self._route:
            route = member(image.row, self._route, "route.by.field", ConnectKind.STRING)
            found = (row if deleted else value).get(route.name) or ""
            topic = found if found.strip() else topic
        headers = record.headers
        if plan.headers:
            headers += tuple(
                (field.name, schema, field.of(event)) for field, schema in plan.headers
            )
        made = ConnectRecord(
            topic, record.key_schema, record.key, schema, value, headers, record.partition,
            record.timestamp,
        )  # fmt: skip
        return made if self._drop is None else self._drop(made)

    def _plan(self, schema: Schema) -> "_UnwrapPlan":
        before, after = (self._image(schema, name) for name in ("before", "after"))
        return _UnwrapPlan(before, after, bound(self._headers, schema))

    def _image(self, envelope: Schema, name: str) -> "_UnwrappedRows":
        field = field_of(envelope, name)
        if field is None:
            raise RecordUnfit(f"{envelope.name} has no field {name}")
        row = field.schema
        added = bound(self._fields, envelope)
        fields = [*row.fields, *([_DELETED_FIELD] if self._rewrites else [])]
        schema = required_struct(row, [*fields, *(Field(each.name, made) for each, made in added)])
        return _UnwrappedRows(
            row=row,
            schema=schema,
            added=tuple(each for each, _ in added),
            defaults=defaults_of(row) if self._fills else (),
            marks=self._rewrites,
        )


class _UnwrappedRows(msgspec.Struct, frozen=True):
    """Describe the written rows of one schema."""

    # Schema of the row in the event.
    row: Schema
    # Schema of the row that is written.
    schema: Schema
    # Members of the event that become fields.
    added: tuple[EventField, ...]
    # (column, default) of the columns whose null is replaced.
    defaults: tuple[tuple[str, object], ...]
    # Whether rows have the field `__deleted`.
    marks: bool

    def write(
        self, row: Mapping[str, Any], event: Mapping[str, Any], deleted: str
    ) -> dict[str, Any]:
        written = filled(row, self.defaults)
        if self.marks:
            written[DELETED] = deleted
        for field in self.added:
            written[field.name] = field.of(event)
        return written


class _UnwrapPlan(msgspec.Struct, frozen=True):
    """Describe the rows and headers of events of one schema."""

    before: _UnwrappedRows
    after: _UnwrappedRows
    # Members of the event that become headers, with their schemas.
    headers: tuple[tuple[EventField, Schema], ...]


class _DropByHeader:
    """Remove the fields that a header lists."""

    def __init__(self, header: str, *, from_key: bool, only_optional: bool) -> None:
        self._header, self._from_key, self._only_optional = header, from_key, only_optional
        self._known = SchemaMemory(self._less, most=MAX_SCHEMAS)

    def __call__(self, record: ConnectRecord) -> ConnectRecord:
        header = next((each for each in record.headers if each[0] == self._header), None)
        if header is None or not header[2]:
            return record
        if not isinstance(header[2], Sequence) or isinstance(header[2], str | bytes):
            raise RecordUnfit(f"the header {self._header} is no list of fields")
        names = tuple(header[2])
        key_schema, key = record.key_schema, record.key
        if self._from_key and key is not None and key_schema is not None:
            key_schema, key = self._without(key_schema, key, names)
        schema, value = record.value_schema, record.value
        if schema is not None and value is not None:
            schema, value = self._without(schema, value, names)
        return msgspec.structs.replace(
            record, key_schema=key_schema, key=key, value_schema=schema, value=value
        )

    def _without(
        self, schema: Schema, value: Mapping[str, Any], names: tuple[str, ...]
    ) -> tuple[Schema, Mapping[str, Any]]:
        less = self._known.of(schema, names)
        return (schema, value) if less is None else (less[0], less[1](value))

    def _less(
        self, schema: Schema, names: tuple[str, ...]
    ) -> tuple[Schema, Callable[[Mapping[str, Any]], dict[str, Any]]] | None:
        """Return the reduced schema and the conversion of rows, None for no change."""
        if schema.kind is not ConnectKind.STRUCT:
            raise RecordUnfit(f"fields cannot be left out of {schema.kind.value}")
        dropped = {
            field.name
            for field in schema.fields
            if field.name in names and (field.schema.optional or not self._only_optional)
        }
        # Otherwise the struct is copied even if no field is dropped, which gives nulls their defaults.
        if not dropped and self._only_optional:
            return None
        remaining = [field for field in schema.fields if field.name not in dropped]
        # Nulls become defaults, as in Connect's ReplaceField.
        columns = ((field.name, field.name, field.schema.default) for field in remaining)
        return required_struct(schema, remaining), projection(columns)


NEW_RECORD_STATE = debezium_spec(
    "ExtractNewRecordState",
    "Replaces the change event by the row, with members of the event as fields or headers.",
    ExtractNewRecordStateProperties,
    lambda properties, _context: ExtractNewRecordState(properties),
    older=("UnwrapFromEnvelope",),  # profiles of old Debezium versions still have this name
    replaces_events=True,
)
