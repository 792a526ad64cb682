"""A format of flat JSON objects: the operation, and the row's columns as PostgreSQL's texts.

    key    {"id": "1"}
    value  {"op": "c", "row": {"id": "1", "name": "one"}}

A column that the server did not send is left out of ``row``; NULL is null. A delete is followed by
a tombstone. A changed key is a delete of the old row and a create of the new one.
"""

from collections.abc import Sequence

import orjson

from waltap.changes.decode import (
    Change,
    Delete,
    LogicalMessage,
    MissingValue,
    Truncate,
    Tuple,
    Update,
)
from waltap.changes.events import OPERATIONS, EventPlan, EventPlans, kind_of
from waltap.changes.transactions import Heartbeat, SnapshotRows, TransactionPart
from waltap.encoders.format import Format, FormatContext, Record


class FlatFormat(Format):
    """Renders batches. What depends on a table is worked out once per relation."""

    def __init__(self, properties: object, context: FormatContext) -> None:
        self._capture = capture = context.capture
        # A plan knows what the profile says of a table: columns, masks, key and topic.
        plans = context.plans(context.mapper(capture.types))
        tombstones = capture.properties.tombstones
        self._tables = EventPlans(plans, lambda plan: _Table(plan, tombstones=tombstones))

    def render(
        self, parts: Sequence[TransactionPart | SnapshotRows | Heartbeat], now: int
    ) -> list[Record]:
        """Return the records of ``parts``, in order."""
        out: list[Record] = []
        for part in parts:
            if isinstance(part, TransactionPart):
                for change in part.changes:
                    if OPERATIONS[kind_of(change)] not in self._capture.skipped:
                        self._change(change, out)
            elif isinstance(part, SnapshotRows):
                table = self._tables.of(part.relation)
                if table is not None:
                    out += [table.record("r", row) for row in part.rows]
            else:
                value = orjson.dumps({"op": "heartbeat", "ts_ms": part.ts})
                out.append(Record(self._capture.heartbeat_topic, None, value))
        return out

    def forget(self, oid: int) -> None:
        """Discard what is known of a dropped table."""
        self._tables.forget(oid)

    def _change(self, change: Change, out: list[Record]) -> None:
        if isinstance(change, LogicalMessage):
            if self._capture.message_prefix(change.prefix):
                text = change.content.decode(errors="replace")
                value = orjson.dumps({"op": "m", "prefix": change.prefix, "content": text})
                out.append(Record(self._capture.message_topic, None, value))
            return
        if isinstance(change, Truncate):
            for table in map(self._tables.of, change.relations):
                if table is not None:
                    out.append(Record(table.topic, None, orjson.dumps({"op": "t"})))
            return
        table = self._tables.of(change.relation)
        if table is None:
            return
        if isinstance(change, Update):
            table.update(change, out)
        elif isinstance(change, Delete):
            table.delete(change, out)
        else:
            out.append(table.record("c", change.new))


class _Table:
    """The plan of one relation version."""

    def __init__(self, plan: EventPlan, *, tombstones: bool) -> None:
        self.topic, self._plan, self._tombstones = plan.topic, plan, tombstones
        masks = plan.masks()
        # Columns of types that no plugin maps are left out.
        mapped = [column for column in plan.columns if column.mapping is not None]
        self._columns = [(each.field, each.index, masks.get(each.index)) for each in mapped]

    def record(self, operation: str, row: Tuple, key: bytes | None = None) -> Record:
        """Return the record of a row; what the server did not send is left out."""
        values = {
            name: row[index] if mask is None else mask(row[index])
            for name, index, mask in self._columns
            if not isinstance(row[index], MissingValue)
        }
        value = orjson.dumps({"op": operation, "row": values})
        return Record(self.topic, self._key(row) if key is None else key, value)

    def update(self, change: Update, out: list[Record]) -> None:
        """Add the records of an update."""
        _before, after, ended = self._plan.update(change)
        if ended is not None:
            self._gone(ended, ended, out)
        out.append(self.record("u" if ended is None else "c", after))

    def delete(self, change: Delete, out: list[Record]) -> None:
        """Add the records of a delete; one that identifies no row is left out."""
        images = self._plan.delete(change)
        if images is not None:
            self._gone(*images, out)

    def _gone(self, row: Tuple, keyed: Tuple, out: list[Record]) -> None:
        deleted = self.record("d", row, self._key(keyed))
        out.append(deleted)
        if self._tombstones:
            out.append(Record(self.topic, deleted.key, None))

    def _key(self, row: Tuple) -> bytes | None:
        key = {column.field: _text(row[column.index]) for column in self._plan.key_columns}
        if self._plan.key_field is not None:  # of tables that share a topic
            name, value = self._plan.key_field
            key[name] = value
        return orjson.dumps(key) if key else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
