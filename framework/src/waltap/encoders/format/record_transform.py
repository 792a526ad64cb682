"""The contract of transforms of records, before they are bytes.

A factory gets its validated properties and a `RecordTransformContext`, and returns a function. The
pipeline calls the function once per batch with the records in order: changes, tombstones, heartbeats and
transaction metadata. Notifications have their own calls. The function returns the records for the next
step: the same, changed ones, fewer or more.

* Records and their contents are shared. A transform makes new ones and does not change its input.
* A schema is one object per relation version, and encoders are found by the object. So a transform keeps
  the schema that it made of each schema (`waltap.encoders.format.record_transform`).
* The result for a record does not depend on the limits of batches.
* A transform raises `RecordUnfit` for a record that it cannot handle. The error's text names fields and
  types. The pipeline stops there (WT-3204), and delivers no record of the batch.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from waltap.base.cache import BoundedDict
from waltap.changes.mapping.connect_schema import Schema

if TYPE_CHECKING:
    from waltap.changes.capture.capture import CaptureRules
    from waltap.changes.decode.relation import Relation
    from waltap.changes.decode.tuple_image import Tuple


# Records as schemas and values, before a converter makes bytes.
#
# They have the form that Kafka Connect's converters read.

# (name, schema, value).
ConnectHeader = tuple[str, Schema | None, Any]


class ConnectRecord(msgspec.Struct, eq=False):
    """A record for a topic, with a Connect key and value.

    Values are int, float, bool, str, bytes, list, and dict for structs and maps. A field that is
    missing in a struct's dict is null. A value without schema is a dict, a list or a scalar. A
    tombstone's value, and the key of a record without key, have neither schema nor value.
    """

    topic: str
    # One object per relation version: encoders are found by it, so a transform must keep the schema
    # that it made of each schema.
    key_schema: Schema | None
    key: Any
    value_schema: Schema | None
    value: Any
    headers: tuple[ConnectHeader, ...] = ()
    partition: int | None = None
    # In ms since 1970 UTC. None: the writer of the record gives it one.
    timestamp: int | None = None


# Cache the schemas that transforms make of other schemas.
#
# There is one schema object per relation version.

V = TypeVar("V")

MAX_SCHEMAS = 1000


class SchemaMemory(Generic[V]):
    """Call ``make`` once for each schema object.

    Encoders find a schema by its object, so one source schema must always give the same object.
    ``make`` may take further arguments, such as a topic; a schema among them counts by its object, too.
    A full cache is cleared.
    """

    __slots__ = ("_known", "_make")

    def __init__(self, make: Callable[..., V], *, most: int = MAX_SCHEMAS) -> None:
        self._make = make
        self._known = BoundedDict[object, tuple[Schema, tuple[Any, ...], V]](most)

    def of(self, schema: Schema, *more: Any) -> V:
        key: object = id(schema)
        if more:
            key = id(schema), *(id(each) if each.__class__ is Schema else each for each in more)
        entry = self._known.get(key)
        if entry is None:
            # The entry keeps the schemas alive, so that no other object gets their ids.
            entry = self._known[key] = schema, more, self._make(schema, *more)
        return entry[2]


RecordTransform = Callable[[list[ConnectRecord]], list[ConnectRecord]]

# Returns whether a transform gets a record. It depends on the record only and has no state.
RecordPredicate = Callable[[ConnectRecord], bool]


class RecordUnfit(ValueError):
    """A transform cannot handle a record.

    The text names fields and types, never a value.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordTransformContext:
    """Give a transform of records the facts about its pipeline."""

    # The transform's name in the profile.
    label: str
    capture: "CaptureRules"
    # The connector's name in events.
    connector: str = "postgresql"
    # Call it once per fault, not once per record.
    warn: Callable[[str], None] = lambda _text: None
    # Returns whether the pipeline must stop. A wait then ends with `StopRequested`.
    stopping: Callable[[], bool] = lambda: False
    # `RowReadingSource.rows_now`.
    rows_now: "Callable[[Relation, Sequence[str], Sequence[str], Sequence[Tuple]], list[Tuple]]" = (
        lambda *_asked: []
    )
