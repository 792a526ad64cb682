"""Events as transforms of the record stage see them: typed views that decode a value when it is read.

A transform of events is called once per batch with all its row events and truncates, in order, and
returns those that go on:

    def shouted(events: list[Event]) -> list[Event]:
        for event in events:
            if event.after is not None and isinstance(event.after["name"], str):
                event.after["name"] = event.after["name"].upper()
        return [event for event in events if event.op != "d"]

What it leaves alone is encoded from what the server sent, as if there were no transform.
"""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import Any

from waltap.decode.relation import Relation
from waltap.decode.tuple_image import ABSENT, MissingValue, Tuple
from waltap.events.plan import EventColumn
from waltap.mapping.connect_schema import ConnectKind, Schema

__all__ = ["ChangeEvent", "EventRow", "EventTransform", "GivenValue"]

_KINDS: dict[type, ConnectKind] = {
    bool: ConnectKind.BOOLEAN,
    int: ConnectKind.INT64,
    float: ConnectKind.FLOAT64,
    str: ConnectKind.STRING,
    bytes: ConnectKind.BYTES,
}


class GivenValue:
    """A value that a transform gave, and the schema it is written with."""

    __slots__ = ("schema", "value")

    def __init__(self, value: object, schema: Schema) -> None:
        self.value, self.schema = value, schema


class EventRow(MutableMapping[str, Any]):
    """Before, after or key of an event: field → value, in order.

    Values are those of the column's Connect type (bool, int, float, str, bytes, list, dict), masked
    where the profile masks them; None for NULL; UNCHANGED where the server did not send one. Fields
    that the image does not have (all but the key in a delete's before) are not in the mapping; they
    are written as their stand-in all the same, unless they are deleted.

    A value that is set has the field's type, or may be None; a field that is new gets the type of its
    first value: bool, int, float, str or bytes (a Connect schema of one's own: `put`).
    """

    __slots__ = ("_fields", "columns", "image")

    def __init__(self, columns: Sequence[EventColumn], image: Tuple) -> None:
        self.columns, self.image = columns, image
        self._fields: dict[str, int | GivenValue] | None = None

    @property
    def changed(self) -> "dict[str, int | GivenValue] | None":
        """Return field → the place among the columns of what it shows, or what was given; None where
        nothing was changed."""
        return self._fields

    def __getitem__(self, name: str) -> object:
        found = self._all()[name]
        if isinstance(found, GivenValue):
            return found.value
        value = self._value(self.columns[found])
        if value is ABSENT:
            raise KeyError(name)
        return value

    def __setitem__(self, name: str, value: object) -> None:
        old = self._all().get(name)
        if isinstance(old, GivenValue):
            schema = old.schema
        elif old is not None:
            mapping = self.columns[old].mapping
            assert mapping is not None
            schema = mapping.schema
        else:
            kind = _KINDS.get(type(value))
            if kind is None:
                raise TypeError(f"{name} is a new field: put() its value with a schema")
            schema = Schema(kind=kind, optional=True)
        self.put(name, value, schema)

    def put(self, name: str, value: object, schema: Schema) -> None:
        """Set a field, to be written with ``schema``."""
        self._own()[name] = GivenValue(value, schema)

    def __delitem__(self, name: str) -> None:
        del self._own()[name]

    def rename(self, old: str, new: str) -> None:
        """Call a field otherwise; it keeps its place. Raises: KeyError, ValueError where ``new`` is
        there already."""
        fields = self._own()
        if new in fields:
            raise ValueError(f"there is a field {new} already")
        if old not in fields:
            raise KeyError(old)
        self._fields = {new if name == old else name: place for name, place in fields.items()}

    def __iter__(self) -> Iterator[str]:
        for name, place in self._all().items():
            if isinstance(place, GivenValue) or self._sent(self.columns[place]) is not ABSENT:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def fields(self) -> list[str]:
        """Return the names of all fields that are written, those that the image does not have too."""
        return list(self._all())

    def _all(self) -> dict[str, int | GivenValue]:
        if self._fields is not None:
            return self._fields
        return {
            column.field: place
            for place, column in enumerate(self.columns)
            if column.mapping is not None
        }

    def _own(self) -> dict[str, int | GivenValue]:
        self._fields = self._all()
        return self._fields

    def _sent(self, column: EventColumn) -> object:
        return self.image[column.index]

    def _value(self, column: EventColumn) -> object:
        value, mapping = self.image[column.index], column.mapping
        assert mapping is not None
        if isinstance(value, MissingValue):
            return value
        if isinstance(value, bytes):
            if mapping.from_binary is None:
                raise TypeError("a value in send format of a type that is read as text only")
            value = mapping.from_binary(value)
        found = None if value is None else mapping.to_connect(value)
        change = column.transform
        return found if change is None or change.value is None else change.value(found)


class ChangeEvent:
    """One record to be: of a row (op c, u, d, r), its tombstone, or a truncate (t).

    ``topic`` may be changed, ``headers`` added to: (name, text), written before the format's own.
    ``key`` None: the record has none. ``before`` and ``after`` are None where the event has none; of a
    tombstone both are. What a delete's tombstone should share with it (key, topic, headers) is to be
    changed in both. ``relation``, ``lsn``, ``commit_ts`` (µs since 1970 UTC) and ``xid`` are for reading;
    ``source`` is the encoder's.
    """

    __slots__ = (
        "after",
        "before",
        "commit_ts",
        "headers",
        "key",
        "lsn",
        "op",
        "relation",
        "source",
        "tombstone",
        "topic",
        "xid",
    )

    def __init__(
        self,
        op: str,
        relation: Relation,
        topic: str,
        *,
        key: EventRow | None,
        before: EventRow | None,
        after: EventRow | None,
        source: Any,
        lsn: int | None = None,
        commit_ts: int = 0,
        xid: int | None = None,
        tombstone: bool = False,
    ) -> None:
        self.op, self.relation, self.topic = op, relation, topic
        self.key, self.before, self.after = key, before, after
        self.source, self.tombstone = source, tombstone
        self.lsn, self.commit_ts, self.xid = lsn, commit_ts, xid
        self.headers: list[tuple[str, str]] = []


EventTransform = Callable[[list[ChangeEvent]], list[ChangeEvent]]
"""Gets the events of one batch and returns some or all of them, changed in place, in their order."""
