"""A format of flat JSON objects: the operation, and the row's columns as PostgreSQL's texts.

    key    {"id": "1"}
    value  {"op": "c", "row": {"id": "1", "name": "one"}}

A column that the server did not send is left out of ``row``; NULL is null. A delete is followed by
a tombstone. A changed key is a delete of the old row and a create of the new one.
"""

from collections.abc import Callable

import orjson

from waltap.changes.decode import (
    Change,
    Delete,
    Insert,
    LogicalMessage,
    MissingValue,
    Relation,
    ReplicaIdentity,
    Truncate,
    Tuple,
    Update,
)
from waltap.changes.transactions import Heartbeat, SnapshotRows, TransactionPart
from waltap.encoders.format import Format, FormatContext, Record


class FlatFormat(Format):
    """Renders batches. What depends on a table is worked out once per relation."""

    def __init__(self, properties: object, context: FormatContext) -> None:
        self._context, self._capture = context, context.capture
        self._tables: dict[Relation, _Table | None] = {}

    def render(
        self, parts: list[TransactionPart | SnapshotRows | Heartbeat], now: int
    ) -> list[Record]:
        """Return the records of ``parts``, in order."""
        out: list[Record] = []
        for part in parts:
            if isinstance(part, TransactionPart):
                for change in part.changes:
                    self._change(change, out)
            elif isinstance(part, SnapshotRows):
                table = self._table(part.relation)
                if table is not None:
                    out += [table.record("r", row) for row in part.rows]
            else:
                value = orjson.dumps({"op": "heartbeat", "ts_ms": part.ts})
                out.append(Record(self._capture.heartbeat_topic, None, value))
        return out

    def _change(self, change: Change, out: list[Record]) -> None:
        if isinstance(change, LogicalMessage):
            text = change.content.decode(errors="replace")
            value = orjson.dumps({"op": "m", "prefix": change.prefix, "content": text})
            out.append(Record(self._capture.message_topic, None, value))
            return
        if isinstance(change, Truncate):
            for table in map(self._table, change.relations):
                if table is not None:
                    out.append(Record(table.topic, None, orjson.dumps({"op": "t"})))
            return
        table = self._table(change.relation)
        if table is None:
            return
        if isinstance(change, Insert):
            out.append(table.record("c", change.new))
        elif isinstance(change, Update):
            table.update(change, out)
        else:
            table.delete(change, out)

    def _table(self, relation: Relation) -> "_Table | None":
        """Return what is known of a table, None when it is not captured."""
        try:
            return self._tables[relation]
        except KeyError:
            table = None
            if self._capture.captures(relation.schema, relation.table):
                described = self._context.describe(relation)
                topic = relation.topic or self._capture.topic(relation.schema, relation.table)
                table = _Table(topic, described, self._context.identity(relation))
                table.keyed(self._capture.keys(described))
            self._tables[relation] = table
            return table


class _Table:
    """One relation version: its topic, the names of its columns, the places of its key."""

    def __init__(self, topic: str, relation: Relation, identity: ReplicaIdentity) -> None:
        self.topic = topic
        self._names = [column.name for column in relation.columns]
        self._identity = identity
        self._key: Callable[[Tuple], bytes | None] = lambda _row: None

    def keyed(self, places: tuple[int, ...]) -> None:
        """Make keys of the columns at ``places``."""
        names = [(self._names[place], place) for place in places]
        if names:
            self._key = lambda row: orjson.dumps({name: _text(row[at]) for name, at in names})

    def record(self, operation: str, row: Tuple) -> Record:
        """Return the record of a row; what the server did not send is left out."""
        values = {
            name: _text(value)
            for name, value in zip(self._names, row, strict=True)
            if not isinstance(value, MissingValue)
        }
        return Record(self.topic, self._key(row), orjson.dumps({"op": operation, "row": values}))

    def update(self, change: Update, out: list[Record]) -> None:
        """Add the records of an update."""
        images = self._identity.update(change)
        assert images.after is not None
        if images.old_key is not None and self._key(images.old_key) != self._key(images.after):
            self._gone(images.old_key, out)
            out.append(self.record("c", images.after))
        else:
            out.append(self.record("u", images.after))

    def delete(self, change: Delete, out: list[Record]) -> None:
        """Add the records of a delete; one that identifies no row is left out."""
        images = self._identity.delete(change)
        if images is not None and images.old_key is not None:
            self._gone(images.old_key, out)

    def _gone(self, row: Tuple, out: list[Record]) -> None:
        deleted = self.record("d", row)
        out += [deleted, Record(self.topic, deleted.key, None)]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None
