"""Events for transforms: typed views that decode on access.

The record stage calls a transform of events once per batch, with all its row events and
truncates, in order. The transform returns the events to deliver:

    def shouted(events: list[Event]) -> list[Event]:
        for event in events:
            if event.after is not None and isinstance(event.after["name"], str):
                event.after["name"] = event.after["name"].upper()
        return [event for event in events if event.op != "d"]

Fields that a transform leaves alone are encoded from the server's values, as if there were no
transform.
"""

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, NamedTuple

import msgspec

from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import ABSENT, MissingValue, Tuple
from waltap.changes.events.plan import EventColumn
from waltap.changes.mapping.connect_schema import ConnectKind, Schema

# Only types with one obvious Connect kind; a field of any other needs `EventRow.put`.
_KINDS: dict[type, ConnectKind] = {
    bool: ConnectKind.BOOLEAN,
    int: ConnectKind.INT64,
    float: ConnectKind.FLOAT64,
    str: ConnectKind.STRING,
    bytes: ConnectKind.BYTES,
}


class GivenValue(NamedTuple):
    """Hold a value that a transform set, and its schema."""

    value: object
    schema: Schema


class EventRow(MutableMapping[str, Any]):
    """Map the fields of an event's row or key to values.

    Values are of the column's Connect type (bool, int, float, str, bytes, list, dict), masked
    where the profile masks them; None for NULL; UNCHANGED where the server did not send one.
    Fields that the image lacks, such as all but the key in a delete's before, are not in the
    mapping. They are still written as their placeholder, unless they are deleted.

    A value that a transform sets must have the field's type, or be None. A new field gets the
    type of its first value: bool, int, float, str or bytes. `put` sets one with another Connect
    schema.
    """

    __slots__ = ("changed", "columns", "image")

    def __init__(self, columns: Sequence[EventColumn], image: Tuple) -> None:
        self.columns, self.image = columns, image
        # Field → its column's index or its given value; None: the transform changed nothing.
        self.changed: dict[str, int | GivenValue] | None = None

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
            # None has no type, so a new field cannot start with it.
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
        """Rename a field; it keeps its index.

        Raises KeyError where ``old`` is missing, and ValueError where ``new`` exists.
        """
        fields = self._own()
        if new in fields:
            raise ValueError(f"there is a field {new} already")
        if old not in fields:
            raise KeyError(old)
        self.changed = {new if name == old else name: index for name, index in fields.items()}

    def __iter__(self) -> Iterator[str]:
        for name, index in self._all().items():
            if isinstance(index, GivenValue) or self.image[self.columns[index].index] is not ABSENT:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def fields(self) -> list[str]:
        """Return the names of all written fields.

        Fields that the image lacks are among them.
        """
        return list(self._all())

    def _all(self) -> dict[str, int | GivenValue]:
        if self.changed is not None:
            return self.changed
        return {
            column.field: index
            for index, column in enumerate(self.columns)
            if column.mapping is not None
        }

    def _own(self) -> dict[str, int | GivenValue]:
        # The first change builds the fields; a row without a change keeps none.
        self.changed = self._all()
        return self.changed

    def _value(self, column: EventColumn) -> object:
        value, mapping = self.image[column.index], column.mapping
        assert mapping is not None
        if isinstance(value, MissingValue):
            return value
        found = None if value is None else mapping.to_connect(value)
        change = column.transform
        # A transform must not see values that the profile masks.
        return found if change is None or change.value is None else change.value(found)


@dataclass(slots=True, eq=False, repr=False)
class ChangeEvent:
    """Carry a row's event (c, u, d, r), tombstone or truncate.

    A transform may change ``topic``, ``key``, ``before`` and ``after``, and add to ``headers``. A
    delete and its tombstone are two events: a transform that changes the key, topic or headers of
    one must change the other, too.
    """

    op: str
    relation: Relation
    topic: str
    _: KW_ONLY
    # None: the event has none. A tombstone has neither before nor after.
    key: EventRow | None
    before: EventRow | None
    after: EventRow | None
    # Belongs to the encoder; transforms leave it alone.
    source: Any
    # For reading only; `commit_ts` is in µs since 1970 UTC.
    lsn: int | None = None
    commit_ts: int = 0
    xid: int | None = None
    tombstone: bool = False
    # (name, text), written before the format's own headers.
    headers: list[tuple[str, str]] = field(default_factory=list, init=False)


EventTransform = Callable[[list[ChangeEvent]], list[ChangeEvent]]
"""Return some or all events of one batch, changed in place, in their order."""


# (name, value as the format renders it).
Header = tuple[str, bytes]


class Record(msgspec.Struct, gc=False):
    """One record for a topic."""

    topic: str
    # None: the record has no key.
    key: bytes | None
    # None: the record is a tombstone.
    value: bytes | None
    # Shared between records, so never change it.
    headers: tuple[Header, ...] = ()
    partition: int | None = None
    # In ms since 1970 UTC. None: the time of writing, where the destination has one.
    timestamp: int | None = None
