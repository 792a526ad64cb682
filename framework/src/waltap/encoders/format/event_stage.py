"""Run transforms of events before records are made."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.events import ChangeEvent, EventRow, EventTransform, GivenValue
from waltap.changes.mapping.connect_schema import Field, Schema
from waltap.encoders.format.converter import EventFrame
from waltap.encoders.format.record_transform import ConnectHeader, ConnectRecord, SchemaMemory
from waltap.encoders.format.tables import ConnectTable, ConnectTables, ImageLayout
from waltap.encoders.json.codec import MISFITS
from waltap.encoders.json.event_format import changed_fields, transformed_events

# Cached schemas of rows that transforms changed.
SCHEMAS_KEPT = 1000


class PlannedRecord:
    """Hold the parts of a record that transforms may still change."""

    __slots__ = (
        "after", "before", "block", "frame", "headers", "key", "lsn", "rows", "table", "tombstone",
    )  # fmt: skip

    def __init__(
        self,
        table: ConnectTable,
        rows: ImageLayout,
        frame: EventFrame,
        lsn: int | None,
        key: Tuple | None,
        before: Tuple | None,
        after: Tuple | None,
        headers: tuple[ConnectHeader, ...],
        tombstone: bool,
    ) -> None:
        self.table, self.rows, self.frame, self.lsn = table, rows, frame, lsn
        self.key, self.before, self.after = key, before, after
        self.headers, self.tombstone = headers, tombstone
        self.block: dict[str, Any] | None = None


MakeRecord = Callable[[str, str, PlannedRecord, ChangeEvent | None], ConnectRecord]


class EventStage:
    """Call the transforms with the events of a batch.

    Raises: EventTransformFailed.
    """

    def __init__(
        self, transforms: Sequence[tuple[str, EventTransform]], tables: ConnectTables
    ) -> None:
        self._transforms, self._tables = transforms, tables
        self._schemas = SchemaMemory(self._made, most=SCHEMAS_KEPT)

    def event(
        self, op: str, intent: PlannedRecord, ts: int, xid: int | None, *, lsn: int | None = None
    ) -> ChangeEvent:
        """Return the event of ``intent``."""
        plan = intent.table.plan
        key = None if intent.key is None or intent.rows.key_schema is None else intent.key
        return ChangeEvent(
            op,
            plan.relation,
            plan.topic,
            key=None if key is None else EventRow(plan.key_columns, key),
            before=None if intent.before is None else EventRow(plan.columns, intent.before),
            after=None if intent.after is None else EventRow(plan.columns, intent.after),
            source=intent,
            lsn=intent.lsn if lsn is None else lsn,
            commit_ts=ts,
            xid=xid,
            tombstone=intent.tombstone,
        )

    def transformed(self, out: list[Any], record: MakeRecord) -> list[ConnectRecord]:
        """Return ``out`` with records in place of events.

        The transforms get the events first.
        """
        left = transformed_events(out, self._transforms)
        return [self._of(each, record) if type(each) is ChangeEvent else each for each in left]

    def _of(self, event: ChangeEvent, record: MakeRecord) -> ConnectRecord:
        intent: PlannedRecord = event.source
        try:
            return record(event.op, event.topic, intent, event)
        except MISFITS:
            # An enum's label may be new: read the types again, then convert with care.
            table = self._tables.renewed(intent.table.plan.seen, intent.table)
            intent.rows = table.read if intent.rows is intent.table.read else table.streamed
            intent.table = table
            return record(event.op, event.topic, intent, event)

    def values(
        self, event: ChangeEvent, intent: PlannedRecord
    ) -> tuple[Any, Any, Any, Schema | None, Schema]:
        """Return key, before, after, and the schemas of key and value.

        They contain the changes of the transforms.
        """
        rows, shape = intent.rows, intent.table.shape
        read = rows is intent.table.read and rows is not intent.table.streamed
        row_schema = shape.read_row if read else shape.row
        key_schema, value_schema = rows.key_schema, rows.value_schema
        before, after = (
            None if row is None else self._row(row, rows.row) for row in (event.before, event.after)
        )
        # Both images share one schema: the one of ``after``, or of ``before`` in a delete.
        changed = event.after if event.after is not None else event.before
        if changed is not None and changed.changed is not None:
            value_schema = self._schema(
                row_schema, changed, changed.changed, intent.table.plan.topic
            )
        key = None if event.key is None else self._row(event.key, rows.key)
        if key_schema is not None and event.key is not None and event.key.changed is not None:
            key_schema = self._schema(key_schema, event.key, event.key.changed, "")
        return key, before, after, key_schema, value_schema

    @staticmethod
    def _row(row: EventRow, convert: Callable[[Tuple], dict[str, Any]]) -> dict[str, Any]:
        values = convert(row.image)
        if row.changed is None:
            return values
        return {
            name: place.value if isinstance(place, GivenValue) else values[row.columns[place].field]
            for name, place in row.changed.items()
        }

    def _schema(
        self, schema: Schema, row: EventRow, fields: Mapping[str, int | GivenValue], topic: str
    ) -> Schema:
        """Return ``schema`` with the fields of a changed row.

        With a ``topic``, return the envelope's schema around it.
        """
        chosen = changed_fields(fields, row, schema)
        return self._schemas.of(schema, topic, chosen)

    def _made(self, schema: Schema, topic: str, chosen: tuple[Field, ...]) -> Schema:
        made = msgspec.structs.replace(schema, fields=chosen)
        return self._tables.envelope_schema(topic, made) if topic else made
