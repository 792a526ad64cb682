"""The compiled plan of one relation version's events: an `EventPlan`.

A plan holds every decision of configuration and replica identity as a value: the columns of
events and their masks, the key, the meaning of an old tuple, whether a key changed, the topic. An
encoder compiles these values into its own code, and asks per change only where an old tuple came.
Changes without one become the same events everywhere (`runs`):

    inserts                            c: after
    updates, new row alone             u: after
    updates with an old tuple          u: before and after; where the key changed d, tombstone, c
    deletes                            d: before, tombstone
    truncates                          t, for each relation
    logical messages                   m
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

import msgspec

from waltap.base.plugin_errors import usable
from waltap.changes.capture.column_transform import ColumnTransform
from waltap.changes.capture.source_type import is_text
from waltap.changes.decode.builtin_types import builtin_type
from waltap.changes.decode.message import (
    Change,
    Delete,
    Insert,
    InsertBlock,
    LogicalMessage,
    OldTuple,
    Truncate,
    Update,
)
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.decode.replica_identity import ReplicaIdentity, RowImages
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, MissingValue, Tuple, Value
from waltap.changes.mapping.connect_schema import ConnectKind, Field, Schema
from waltap.changes.mapping.envelope import NEWEST, EnvelopeForm
from waltap.changes.mapping.type_mapping import ColumnMapping, TypeMapper
from waltap.errors import ConfigurationError, DecodeError, RecordError

if TYPE_CHECKING:
    from waltap.changes.capture.capture import CaptureRules


@dataclass(frozen=True, slots=True, kw_only=True)
class CellShape:
    """Define how encoders write a cell."""

    name: str
    # (field of the value, field that is true): a struct of the two, which is null where the value
    # was not sent. None: the cell is the value itself, or the placeholder of one that was not
    # sent.
    members: tuple[str, str] | None = None

    def schema(self, field: str, schema: Schema) -> Schema:
        """Return the schema of cell ``field``, given its value's."""
        if self.members is None:
            return schema
        value, is_set = self.members
        return Schema(
            kind=ConnectKind.STRUCT,
            optional=schema.optional,
            name=field,
            fields=(
                # The comment moves to the struct, so that it is not repeated inside.
                Field(value, msgspec.structs.replace(schema, doc=None)),
                Field(is_set, Schema(kind=ConnectKind.BOOLEAN)),
            ),
            doc=schema.doc,
        )


PLAIN = CellShape(name="plain")
VALUE_AND_SET = CellShape(name="value and set", members=("value", "set"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EventForm:
    """Define the form of rows and of their envelope."""

    # The shape of values in rows and keys.
    cell: CellShape = PLAIN
    envelope: EnvelopeForm = NEWEST


INSERTS: Final = "inserts"
# Only the new row was sent: there is no before, and the key did not change.
UPDATES: Final = "updates"
CHANGED: Final = "updates with an old tuple"
DELETES: Final = "deletes"
TRUNCATES: Final = "truncates"
MESSAGES: Final = "logical messages"

# Kind of run → the operation of its events. A changed key makes d and c of an update.
OPERATIONS: Final[dict[str, str]] = {
    INSERTS: "c",
    UPDATES: "u",
    CHANGED: "u",
    DELETES: "d",
    TRUNCATES: "t",
    MESSAGES: "m",
}

# Type → (kind, whether it has one relation).
_KINDS: Final = {
    Insert: (INSERTS, True),
    Update: (CHANGED, True),
    Delete: (DELETES, True),
    Truncate: (TRUNCATES, False),
    LogicalMessage: (MESSAGES, False),
}
_relation_of = attrgetter("relation")

# From this number of changes on, it is quicker to ask first whether all are inserts into one
# table.
MIN_UNIFORM_RUN: Final = 16


# So many pairs of neighbours show whether changes alternate.
SAMPLED_PAIRS: Final = 16


def kind_of(change: Change) -> str:
    """Return the kind of ``change``."""
    kind = _KINDS[type(change)][0]
    # There is no old tuple to compare, so no plan needs to look at the update.
    if kind is CHANGED and change.old_kind is OldTuple.NONE:  # type: ignore[union-attr]
        return UPDATES
    return kind


def alternate(changes: Sequence[Change]) -> bool:
    """Return whether sampled neighbours mostly differ in table or kind."""
    if isinstance(changes, InsertBlock):
        return False
    step = max(1, len(changes) // SAMPLED_PAIRS)
    pairs = [(changes[at], changes[at + 1]) for at in range(0, len(changes) - 1, step)]
    differ = [
        type(one) is not type(other)
        or getattr(one, "relation", None) is not getattr(other, "relation", None)
        for one, other in pairs
    ]
    return sum(differ) * 4 >= len(pairs)


Run = tuple[str, Relation | None, Sequence[Change]]


def runs(changes: Sequence[Change]) -> list[Run]:
    """Return ``changes`` as (kind, relation, neighbours), in order.

    Nothing is left out. The relation is None for truncates, which have several, and for messages,
    which have none.
    """
    if not changes:
        return []
    if isinstance(changes, InsertBlock):
        return [(INSERTS, changes.relation, changes)]
    if (
        # Bulk loads: two passes in C instead of a loop in Python.
        len(changes) >= MIN_UNIFORM_RUN
        and set(map(type, changes)) == {Insert}
        and len(set(map(_relation_of, changes))) == 1
    ):
        return [(INSERTS, changes[0].relation, changes)]  # type: ignore[union-attr]
    found: list[Run] = []
    start, kinds, none = 0, _KINDS, OldTuple.NONE
    kind, relation = "", None
    for index, change in enumerate(changes):
        of_kind, has_one = kinds[type(change)]
        # There is no old tuple to compare, so no plan needs to look at the update.
        if of_kind is CHANGED and change.old_kind is none:  # type: ignore[union-attr]
            of_kind = UPDATES
        of = change.relation if has_one else None  # type: ignore[union-attr]
        if of_kind is not kind or of is not relation:
            if index:
                found.append((kind, relation, changes[start:index]))
            start, kind, relation = index, of_kind, of
    found.append((kind, relation, changes[start:] if start else changes))
    return found


# Debezium's headers: a changed key becomes a delete and a create, and each has the other's key.
NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"
"""Headers of the delete and the create that a changed key becomes: the key of the other one."""


OldRowUnidentified = RecordError.define("OldRowUnidentified", "WT-3209", of_transform=False)


# Returns whether the keys of two images are written alike.
SameKey = Callable[[Tuple, Tuple], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventContext:
    """Carry the inputs of all plans of a pipeline."""

    # Complete a relation from the catalogue; called once per version.
    describe: Callable[[Relation], Relation]
    # Return the replica identity to read a relation with; called once per version. None: old
    # tuples stay as they came.
    identity: Callable[[Relation], ReplicaIdentity] | None
    # None: events have every column, unmasked.
    capture: "CaptureRules | None" = None
    # None: no column has a mapping.
    mapper: TypeMapper | None = None
    choose_topic: Callable[[Relation], str | None] = lambda _relation: None
    cell: CellShape = PLAIN
    # As in `FormatContext`.
    stand_in_keys: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class EventColumn:
    """Describe one column of event rows."""

    # The column's index in tuples.
    index: int
    column: Column
    field: str
    # None for a type that no plugin maps.
    mapping: ColumnMapping | None
    # Masks or truncates values; they stay where its `value` is None.
    transform: ColumnTransform | None


class EventPlan:
    """Hold the plan of one relation version.

    ``seen`` is the relation as the wire sent it last, ``relation`` as the catalogue completed it.
    """

    def __init__(
        self, seen: Relation, described: Relation, context: EventContext, *, by_row: bool = False
    ) -> None:
        """Compile the plan.

        ``by_row``: the key is the columns by which the replica identity knows a row, whatever
        keys are configured. Raises ConfigurationError when two columns get one name.
        """
        self.seen, self.relation, self.cell = seen, described, context.cell
        # Events count the relation under it.
        self.name = described.name
        capture = context.capture
        self.identity = _AsSent(described) if context.identity is None else context.identity(seen)
        self.identifying = self.identity.identifying
        # A transform's topic comes before a plugin's, and the naming strategy comes last.
        self.topic = seen.topic or context.choose_topic(seen) or ""
        # A (name, value) that keys get in addition to their columns.
        self.key_field: tuple[str, str] | None = None
        # With a part of a key, nothing less than the row identifies a row.
        flags = [column.in_identity for column in described.columns]
        part = any(flags) and not all(flags)
        self._known_by = self.identifying or (range(len(flags)) if part else ())
        self.keys = self.identifying
        if capture is not None:
            self.topic = self.topic or capture.topic(seen.schema, seen.table)
            self.key_field = capture.key_field(seen.schema, seen.table)
            if not by_row:
                self.keys = capture.keys(described)
        # Deletes have no key, and changes of the key are not seen.
        self.keyless_deletes = not context.stand_in_keys and bool(
            capture is not None and capture.keys_never_sent(described)
        )
        # Such an update may lack any other column: a struct cell is null then, a plain one has
        # the placeholder.
        partial = self.identity.partial and self.cell is not PLAIN
        captured = range(len(flags)) if capture is None else capture.columns(described)
        # Consumers use these names for all columns, captured or not.
        self.names = tuple(_name(column, capture) for column in described.columns)
        self.columns = tuple(
            _column(described, index, context, nullable=partial and index not in self.identifying)
            for index in captured
        )
        self.key_columns = tuple(
            _column(described, index, context, key=True) for index in self.keys
        )
        self._strict = by_row or not context.stand_in_keys
        self._key_of: Callable[[Tuple], Any] | None = itemgetter(*self.keys) if self.keys else None
        self._refuse_one_name()

    def wrong_tuple(self, decoder: str, lsn: int) -> DecodeError:
        """Return the error for a tuple that no encoder can render."""
        return DecodeError(
            decoder,
            lsn=lsn,
            expected=f"tuples as wide as {self.name}",
            found="one that is not",
        )

    def _refuse_one_name(self) -> None:
        """Raise ConfigurationError when two mapped columns get one name."""
        names = [column.field for column in self.columns if column.mapping is not None]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            what = f"columns of {self.name} get the same field name: {', '.join(twice)}"
            raise ConfigurationError.of("field.name.adjustment.mode", what)

    # --- changes with an old tuple ----------------------------------------------------------------

    def update(
        self, change: Update, same_key: SameKey | None = None
    ) -> tuple[Tuple | None, Tuple, Tuple | None]:
        """Return (before, after, old) of an update with an old tuple.

        ``old`` is the row that ends where the key changed, and ``after`` begins another row.
        ``old`` is None where the row stays the same. ``same_key`` compares the written keys of
        two images whose values differ. Without it a value that one image lacks counts as
        unchanged, and ``after`` gets the complete key. Raises OldRowUnidentified.
        """
        images = self.identity.update(change)
        if images.__class__ is not RowImages:
            usable(images, RowImages, self.identity, "update")
        old, after, key_of = images.old_key, images.after, self._key_of
        assert after is not None
        if old is not None and self._strict:
            self._require_known(old)
        # The usual case first: equal values are equal keys.
        if old is None or key_of is None or key_of(old) == key_of(after) or self.keyless_deletes:
            return images.before, after, None
        if same_key is not None:
            return images.before, after, None if same_key(old, after) else old
        if all(_alike(old[n], after[n]) for n in self.keys):
            return images.before, after, None
        return images.before, self._with_key(after, old), old

    def delete(self, change: Delete) -> tuple[Tuple, Tuple] | None:
        """Return (before, the image to take the key from).

        None means that the old tuple identifies no row, so there is no event. Raises
        OldRowUnidentified.
        """
        images = self.identity.delete(change)
        if images.__class__ is not RowImages:
            usable(images, (RowImages, type(None)), self.identity, "delete")
        if images is None or images.before is None:
            return None
        if self._strict:
            self._require_known(images.before)
        return images.before, images.old_key or images.before

    def _require_known(self, old: Tuple) -> None:
        """Raise OldRowUnidentified for an old row without a column that identifies rows."""
        for index in self._known_by:
            if old[index] is ABSENT:
                raise OldRowUnidentified(
                    f"an old row of {self.name} lacks {self.relation.columns[index].name}, by which "
                    "rows of the table are known: it is of a partition with another replica identity, "
                    "or a column of the key is not sent"
                )

    def _with_key(self, new: Tuple, old: Tuple) -> Tuple:
        """Fill key columns that were not sent again from the old image."""
        if all(new[n] is not UNCHANGED for n in self.keys):
            return new
        filled = list(new)
        for n in self.keys:
            if filled[n] is UNCHANGED:
                filled[n] = old[n]
        return tuple(filled)

    # --- masks --------------------------------------------------------------------------------------

    def masks(
        self, *, unmasked: frozenset[int] = frozenset()
    ) -> dict[int, Callable[[Value], Value]]:
        """Return, by index, the function that masks a column's text.

        Consumers of tuples use it. UNCHANGED and ABSENT stay as they are, and so do the columns
        in ``unmasked``.
        """
        return {
            column.index: _mask(column.transform.value, column.column, column.mapping)
            for column in self.columns
            if column.index not in unmasked
            and column.mapping is not None
            and column.transform is not None
            and column.transform.value is not None
        }


def _alike(old: Value, new: Value) -> bool:
    """Return whether a key value may be unchanged."""
    return isinstance(old, MissingValue) or new is UNCHANGED or old == new


class _AsSent(ReplicaIdentity):
    """Take old tuples unchanged, without a known replica identity."""

    name = "as sent"

    def update(self, message: Update) -> RowImages:
        return RowImages(message.old or None, message.new, None)

    def delete(self, message: Delete) -> RowImages | None:
        return RowImages(message.old, None, None)


def _name(column: Column, capture: "CaptureRules | None") -> str:
    """Return the name that every consumer uses for ``column``."""
    return column.name if capture is None else capture.field_name(column.name)


def _column(
    relation: Relation,
    index: int,
    context: EventContext,
    *,
    key: bool = False,
    nullable: bool = False,
) -> EventColumn:
    capture, mapper, column = context.capture, context.mapper, relation.columns[index]
    if capture is not None and column.comment and not capture.properties.include_comments:
        column = msgspec.structs.replace(column, comment=None)
    if nullable:
        column = msgspec.structs.replace(column, nullable=True)
    mapping = None if mapper is None else mapper.of(relation, column)
    schema = None if mapping is None else mapping.schema
    return EventColumn(
        index=index,
        column=column,
        field=_name(column, capture),
        mapping=mapping,
        # Keys stay unmasked, as Debezium's keys do.
        transform=None if capture is None or key else capture.transform(relation, column, schema),
    )


def _mask(
    transform: Callable[[object], object], column: Column, mapping: ColumnMapping
) -> Callable[[Value], Value]:
    known = builtin_type(column.type_oid)
    if known is not None and known.name == "bytea":
        return partial(_mask_bytes, transform)
    if is_text(column):
        return partial(_mask_text, transform)

    timed = (mapping.schema.name or "").startswith("io.debezium.time.")

    def mask(value: Value) -> Value:
        masked = _mask_text(transform, value)
        if not isinstance(masked, str) or masked == value:
            return masked
        if timed:  # what remains of a time is none, or another one: without BC, say
            return None
        try:
            mapping.to_connect(masked)
        except ValueError:  # a shortened text, which is no value of its type
            return None
        return masked

    return mask


def _mask_text(transform: Callable[[object], object], value: Value) -> Value:
    if isinstance(value, MissingValue):
        return value
    masked = transform(value)
    if masked is None:
        return None
    # Half of a surrogate pair is no text in UTF-8; Java writes ``?``.
    return str(masked).encode("utf-8", "replace").decode()


def _mask_bytes(transform: Callable[[object], object], value: Value) -> Value:
    if not isinstance(value, str):
        return value
    return f"\\x{cast('bytes', transform(bytes.fromhex(value[2:]))).hex()}"


# Of one relation: snapshot and stream may each have versions of their own.
MAX_VERSIONS = 4

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _PlannedVersion(Generic[T]):
    """Hold a relation, its description, and the compiled result."""

    seen: Relation
    described: Relation
    made: T | None


class EventPlans(Generic[T]):
    """Cache the result of ``build`` for each relation's plan.

    Rendering looks into ``compiled``: relation → result, None for a relation that is not
    captured. A missing relation goes to `compile`.
    """

    def __init__(self, context: EventContext, build: Callable[[EventPlan], T]) -> None:
        self.compiled: dict[Relation, T | None] = {}
        self._context, self._build = context, build
        self._versions: dict[int, list[_PlannedVersion[T]]] = {}

    def of(self, relation: Relation) -> T | None:
        """Return the result for ``relation``, compiled if missing."""
        try:
            return self.compiled[relation]
        except KeyError:
            return self.compile(relation)

    def compile(self, relation: Relation) -> T | None:
        """Compile ``relation``, seen for the first time.

        The result is None when the relation is not captured.
        """
        made: T | None = None
        described = relation
        capture = self._context.capture
        versions = self._versions.setdefault(relation.oid, [])
        if capture is None or capture.captures(relation.schema, relation.table):
            described = self._context.describe(relation)
            for known in versions:
                # A repeated announcement is another object; without news in the catalogue the
                # result is reused.
                same = known.described.same_shape(described) and known.seen.topic == relation.topic
                if known.made is not None and same:
                    made = known.made
                    break
            else:
                made = self.build(relation, described)
        versions.append(_PlannedVersion(relation, described, made))
        if len(versions) > MAX_VERSIONS:
            del self.compiled[versions.pop(0).seen]
        self.compiled[relation] = made
        return made

    def build(self, relation: Relation, described: Relation) -> T:
        """Return the result for ``relation`` when it is ``described`` so.

        Nothing is cached.
        """
        return self._build(EventPlan(relation, described, self._context))

    def described(self, relation: Relation) -> Relation | None:
        """Return the cached description of ``relation``, or None."""
        versions = self._versions.get(relation.oid, ())
        return next((version.described for version in versions if version.seen is relation), None)

    def replace(self, relation: Relation, described: Relation, made: T) -> None:
        """Use ``made`` for ``relation`` from now on."""
        versions = self._versions[relation.oid]
        at = next(n for n, version in enumerate(versions) if version.seen is relation)
        versions[at] = _PlannedVersion(relation, described, made)
        self.compiled[relation] = made

    def made(self, oid: int) -> list[T]:
        """Return the cached results for the versions of a relation."""
        return [each.made for each in self._versions.get(oid, ()) if each.made is not None]

    def forget(self, oid: int) -> None:
        """Drop the versions of a relation that no longer exists."""
        for version in self._versions.pop(oid, ()):
            self.compiled.pop(version.seen, None)
