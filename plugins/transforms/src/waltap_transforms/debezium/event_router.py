"""EventRouter: route the events of an outbox table.

Each event gets the topic of its aggregate.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

import msgspec
from pydantic import field_validator, model_validator

from waltap.base.cache import BoundedDict
from waltap.base.property import Maybe, Switch, declare
from waltap.changes.capture.topic_naming import field_namer
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.encoders.format.record_transform import (
    ConnectHeader,
    ConnectRecord,
    RecordTransformContext,
    RecordUnfit,
    SchemaMemory,
)
from waltap_transforms.debezium.json_payload import JsonPayload, NotExpanded
from waltap_transforms.debezium.tracing import EventTracing, TracingProperties
from waltap_transforms.java.numbers import BLANKS
from waltap_transforms.java.patterns import replaced_by
from waltap_transforms.specs import FilledList, debezium_spec, warnings
from waltap_transforms.structs import field_of, is_envelope, member, value_of

logger = logging.getLogger(__name__)

# Expanded payloads and versions from rows would make the number of wrapper schemas unlimited.
MAX_SCHEMAS = 10_000
# Name of a schema → parts of a millisecond in which its columns count.
_UNITS = {
    "io.debezium.time.Timestamp": 1,
    "io.debezium.time.MicroTimestamp": 1_000,
    "io.debezium.time.NanoTimestamp": 1_000_000,
}


class FieldPlacement(NamedTuple):
    """Describe the placement of one further outbox column."""

    column: str
    # header, envelope or partition.
    placement: str
    # Name of the header or of the field beside the payload.
    name: str


class EventRouterProperties(TracingProperties):
    """Columns of the outbox table, and topics of its events."""

    routes = True

    event_id: str = declare(
        "table.field.event.id",
        default="id",
        summary="Column with the identifier of the event; it becomes the header `id`.",
    )
    event_key: str = declare(
        "table.field.event.key",
        default="aggregateid",
        summary="Column that becomes the record's key.",
    )
    event_type: str = declare(
        "table.field.event.type",
        default="type",
        summary="Accepted for Debezium's sake, which does not use it either: "
        "`table.fields.additional.placement` takes the column along.",
    )
    event_timestamp: Maybe[str] = declare(
        "table.field.event.timestamp",
        summary="Column with the record's timestamp; by default it is `ts_ms` of the event.",
    )
    payload: str = declare(
        "table.field.event.payload",
        default="payload",
        deprecated={"table.field.payload": "table.field.event.payload"},
        summary="Column that becomes the record's value.",
    )
    additional: FilledList = declare(
        "table.fields.additional.placement",
        default=(),
        summary="Further columns, as column:placement or column:placement:name; the placement is header, "
        "envelope (beside the payload) or partition.",
        examples=("type:header:eventType,version:envelope",),
    )
    additional_missing: Literal["error", "ignore"] = declare(
        "table.field.additional.missing",
        default="error",
        summary="What happens where the table lacks one of these columns.",
    )
    schema_version: Maybe[str] = declare(
        "table.field.event.schema.version",
        deprecated={"table.field.schema.version": "table.field.event.schema.version"},
        summary="Column with the version of the value's schema, where columns are placed in the envelope.",
    )
    invalid: Literal["warn", "error", "fatal"] = declare(
        "table.op.invalid.behavior",
        default="warn",
        deprecated={"debezium.op.invalid.behavior": "table.op.invalid.behavior"},
        summary="What an update of the outbox table, which should not happen, causes: a warning "
        "or an error in the log, without a record, or a stop of the pipeline.",
    )
    expand: Switch = declare(
        "table.expand.json.payload",
        summary="Make a struct of a payload that is the text of a JSON object; other text stays as it is.",
    )
    expand_nulls: Literal["ignore", "optional_bytes"] = declare(
        "table.json.payload.null.behavior",
        default="ignore",
        summary="Fields of such a payload that are null: left out, or null with the type bytes.",
    )
    field_names: Literal["none", "avro", "avro_unicode"] = declare(
        "field.name.adjustment.mode",
        default="none",
        summary="How field names of such a payload are adjusted to what Avro takes.",
    )
    route_by: str = declare(
        "route.by.field", default="aggregatetype", summary="Column that decides about the topic."
    )
    regex: str = declare(
        "route.topic.regex",
        default="(?<routedByValue>.*)",
        summary="Pattern (Java's) that the column's value must match as a whole; one that does not is the "
        "topic itself.",
    )
    replacement: str = declare(
        "route.topic.replacement",
        default="outbox.event.${routedByValue}",
        summary="The topic, with the pattern's groups as `$1` or `${name}`.",
    )
    tombstones: Switch = declare(
        "route.tombstone.on.empty.payload",
        summary="Make a tombstone of an event whose payload is null or empty.",
    )
    span_required: bool = declare(
        "tracing.with.context.field.only",
        default=True,
        summary="Trace only events that have such a context.",
    )

    @field_validator("additional")
    @classmethod
    def _placed(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        placements(value)
        return value

    @model_validator(mode="after")
    def _routable(self) -> "EventRouterProperties":
        replaced_by(self.regex, self.replacement)
        return self


def placements(entries: tuple[str, ...]) -> list[FieldPlacement]:
    """Parse the placements of further columns.

    Raises: ValueError for an entry that is not ``column:place[:name]``.
    """
    found = []
    for entry in entries:
        column, *rest = (part.strip() for part in entry.split(":"))
        if len(rest) not in (1, 2) or rest[0].lower() not in ("header", "envelope", "partition"):
            raise ValueError(
                f"{entry!r} is not column:place or column:place:name with header, envelope or "
                "partition as place"
            )
        found.append(FieldPlacement(column, rest[0].lower(), rest[1] if rest[1:] else column))
    return found


class EventRouter:
    """Replace change events of an outbox by the events in its rows."""

    def __init__(self, properties: EventRouterProperties, context: RecordTransformContext) -> None:
        self._of = properties
        self._placements = placements(properties.additional)
        # The payload is wrapped even if a table lacks all of these columns.
        self._wraps = any(each.placement == "envelope" for each in self._placements)
        self._topic = replaced_by(properties.regex, properties.replacement)
        self._outboxes = SchemaMemory(self._outbox)
        self._wrappers = BoundedDict[
            tuple[int, int, int | None], tuple[_OutboxTable, Schema, Schema]
        ](MAX_SCHEMAS)
        self._payloads = None
        if properties.expand:
            self._payloads = JsonPayload(
                nulls=properties.expand_nulls == "optional_bytes",
                field_name=field_namer(properties.field_names),
            )
        self._report = warnings(context)
        self._report_update = warnings(
            context, logger.error if properties.invalid == "error" else None
        )
        self._tracing = EventTracing(properties, self._report)

    def __call__(self, records: list[ConnectRecord]) -> list[ConnectRecord]:
        """Return the routed events of a batch, in order. Raises: RecordUnfit."""
        out = []
        for record in records:
            # The tombstone after the delete of a row is not an event.
            if record.value is None:
                continue
            if not is_envelope(record):
                out.append(record)
                continue
            op = record.value.get("op")
            if op == "u":
                if self._of.invalid == "fatal":
                    raise RecordUnfit("a row of the outbox was updated")
                self._report_update("updates of the outbox are left out: only new rows are events")
            # Deletes only clean the table up.
            elif op != "d":
                out.append(self._event(record))
        return out

    def _event(self, record: ConnectRecord) -> ConnectRecord:
        assert record.value_schema is not None
        event, outbox = record.value, self._outboxes.of(record.value_schema)
        row = event.get("after")
        # A truncate or a logical message with an envelope has no row.
        if row is None:
            raise RecordUnfit(f"an event without a row (op {event.get('op')}) is none of an outbox")
        payload_schema, payload = outbox.payload.schema, value_of(outbox.payload, row)
        if self._payloads is not None and payload is not None:
            payload_schema, payload = self._expanded(payload_schema, payload)
        route = row.get(outbox.route.name)
        if route is None:
            raise RecordUnfit(f"{self._of.route_by} is null: there is no topic")
        schema: Schema | None = payload_schema
        value = payload
        # Log compaction removes a key only if both the value and its schema are null.
        if self._of.tombstones and _empty(payload):
            schema = value = None
        elif self._wraps:
            schema = self._wrapper(payload_schema, outbox, row, route)
            value = {"payload": payload}
            value |= {name: value_of(column, row) for name, column in outbox.envelope}
        identifier: ConnectHeader = ("id", outbox.event_id.schema, value_of(outbox.event_id, row))
        added = [(name, column.schema, value_of(column, row)) for name, column in outbox.headers]
        topic = self._topic(route)
        return ConnectRecord(
            # A name that does not match is the topic itself.
            route if topic is None else topic,
            outbox.key.schema,
            value_of(outbox.key, row),
            schema,
            value,
            (*self._tracing.headers(record), identifier, *added),
            None if outbox.partition is None else row.get(outbox.partition.name),
            self._timestamp(event, row, outbox),
        )

    def _expanded(self, schema: Schema, payload: Any) -> tuple[Schema, Any]:
        assert self._payloads is not None
        if not isinstance(payload, str):
            self._report(f"payloads of type {schema.kind.value} are not expanded: they are no text")
            return schema, payload
        try:
            return self._payloads.expanded(payload, self._of.payload)
        except NotExpanded as cause:
            # A bad payload must not stop the pipeline: it is delivered as text.
            self._report(f"a payload stays the text that it is: {cause}")
            return schema, payload

    def _timestamp(
        self, event: Mapping[str, Any], row: Mapping[str, Any], outbox: "_OutboxTable"
    ) -> int | None:
        if outbox.timestamp is not None:
            at: int | None = row.get(outbox.timestamp.name)
            if at is not None:
                unit = _UNITS[outbox.timestamp.schema.name or ""]
                return at // unit if at >= 0 else -(-at // unit)  # towards zero, as Java divides
        # No column, or null in it: the time at which the engine read the event.
        found: int | None = event.get("ts_ms")
        return found

    def _wrapper(
        self, payload: Schema, outbox: "_OutboxTable", row: Mapping[str, Any], route: str
    ) -> Schema:
        version = None if outbox.version is None else row.get(outbox.version.name)
        key = id(payload), id(outbox), version
        entry = self._wrappers.get(key)
        if entry is None:
            beside = (Field(name, column.schema) for name, column in outbox.envelope)
            # Debezium names the schema after the first topic, and uses it for later topics, too.
            made = Schema(
                kind=ConnectKind.STRUCT,
                name=_between(outbox.row.name, route),
                version=version,
                fields=(Field("payload", payload), *beside),
            )
            # The key of the cache has ids: keeping the objects alive prevents that an id is used again.
            entry = self._wrappers[key] = outbox, payload, made
        return entry[2]

    def _outbox(self, envelope: Schema) -> "_OutboxTable":
        """Return the columns of an outbox table.

        Raises: RecordUnfit if the table lacks one of them.
        """
        of = self._of
        row = member(envelope, "after", "an event", ConnectKind.STRUCT).schema
        by_placement = defaultdict[str, list[tuple[str, Field]]](list)
        for each in self._placements:
            if of.additional_missing == "ignore" and field_of(row, each.column) is None:
                continue
            # Kafka's partitions are 32-bit numbers, so no other type is accepted there.
            kind = ConnectKind.INT32 if each.placement == "partition" else None
            column = member(row, each.column, "table.fields.additional.placement", kind)
            by_placement[each.placement].append((each.name, column))
        timestamp = version = None
        if of.event_timestamp is not None:
            what = "table.field.event.timestamp"
            timestamp = member(row, of.event_timestamp, what, ConnectKind.INT64)
            if timestamp.schema.name not in _UNITS:
                raise RecordUnfit(f"{what}: {timestamp.name} has the type {timestamp.schema.name}")
        if of.schema_version is not None and self._wraps:
            what = "table.field.event.schema.version"
            version = member(row, of.schema_version, what, ConnectKind.INT32)
        return _OutboxTable(
            row=row,
            event_id=member(row, of.event_id, "table.field.event.id"),
            key=member(row, of.event_key, "table.field.event.key"),
            payload=member(row, of.payload, "table.field.event.payload"),
            route=member(row, of.route_by, "route.by.field", ConnectKind.STRING),
            timestamp=timestamp,
            version=version,
            headers=tuple(by_placement["header"]),
            envelope=tuple(by_placement["envelope"]),
            # The last of several columns for the partition wins.
            partition=by_placement["partition"][-1][1] if by_placement["partition"] else None,
        )


class _OutboxTable(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Hold the columns of one version of an outbox table."""

    # Schema of the whole row.
    row: Schema
    event_id: Field
    key: Field
    payload: Field
    # Column that decides about the topic.
    route: Field
    timestamp: Field | None
    version: Field | None
    # (new name, column) of the further columns in these two places.
    headers: tuple[tuple[str, Field], ...]
    envelope: tuple[tuple[str, Field], ...]
    partition: Field | None


def _between(name: str | None, topic: str) -> str:
    """Insert ``topic`` before the last part of a schema name."""
    before, dot, last = (name or "").rpartition(".")
    if name is None:
        return topic
    return f"{before}{dot}{topic}.{last}"


def _empty(payload: Any) -> bool:
    """Return whether Java's ``toString().trim()`` of a payload is empty."""
    return payload is None or (isinstance(payload, str) and not payload.strip(BLANKS))


EVENT_ROUTER = debezium_spec(
    "outbox.EventRouter",
    "Makes the events of an outbox table records of their own, each for the topic of its aggregate.",
    EventRouterProperties,
    EventRouter,
    replaces_events=True,
)
