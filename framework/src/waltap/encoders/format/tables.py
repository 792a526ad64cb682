"""Convert tuples of a pipeline's relations to Connect values."""

import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, Generic, TypeVar

from waltap.changes.capture.source_type import may_grow, root_type
from waltap.changes.decode.message import LogicalMessage
from waltap.changes.decode.relation import Relation, TypeKind
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.events.plan import (
    CHANGED,
    DELETES,
    INSERTS,
    MESSAGES,
    NEW_KEY,
    OLD_KEY,
    OPERATIONS,
    TRUNCATES,
    UPDATES,
    EventPlan,
    EventPlans,
)
from waltap.changes.events.shape import ShapeColumn, TableShape, connect_values, table_shape
from waltap.changes.mapping import envelope
from waltap.changes.mapping.connect_schema import Schema
from waltap.changes.mapping.envelope import CONTENT_FORMS
from waltap.changes.mapping.type_mapping import TypeMapper
from waltap.encoders.format.format import Format, FormatContext
from waltap.encoders.json.codec import MISFITS, CompiledTable
from waltap.encoders.json.null_notice import NullNotice

Values = Callable[[Tuple], dict[str, Any]]
Convert = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageLayout:
    """Convert images of one kind to keys and rows.

    The kind is streamed rows or snapshot rows.
    """

    row: Values
    key: Values
    key_schema: Schema | None
    value_schema: Schema


@dataclass(slots=True, kw_only=True, eq=False)
class ConnectTable(CompiledTable):
    """Hold the conversions of one relation version."""

    shape: TableShape
    streamed: ImageLayout
    read: ImageLayout
    # Direct writers of rows: True has the writers of snapshot rows, False of streamed rows.
    compiled: "dict[bool, Any]" = field(default_factory=dict)

    def same_key(self, old: Tuple, new: Tuple) -> bool:
        key = self.streamed.key
        return not self.shape.has_key or alike(key(old), key(new))


def alike(one: object, other: object) -> bool:
    """Return whether two values have the same text."""
    # ``==`` would be wrong: NaN must equal itself, and -0.0 must differ from 0.0.
    return repr(one) == repr(other)


T = TypeVar("T", bound=CompiledTable)


class RowTables(EventPlans[T]):
    """Compile the plan of each relation at its first change.

    Compiling raises ConfigurationError when two columns get the same field name.
    """

    def __init__(self, context: FormatContext, *, null_to_default: bool) -> None:
        self._format, self._capture = context, context.capture
        mode = context.capture.types.event_converting_failure_handling_mode
        self.nulls = NullNotice(context.warn, mode)
        self.source = envelope.source_schema(context.connector, context.envelope)
        self._types = self._mapper(null_to_default=null_to_default)
        super().__init__(context.plans(self._types), self._compiled)

    def renewed(self, relation: Relation, made: T) -> T:
        """Return the result for a row that ``made`` cannot render.

        An enum may have a new label, or a composite type a new attribute. If not, the row itself needs
        the ``careful`` twin: a value that does not fit becomes null, or an error that names the column.
        """
        known = self.compiled.get(relation)
        # An event of the batch may have renewed it already.
        if known is not None and (known.renewed or known.plan is not made.plan):
            return known
        described = made.plan.relation
        # Only such types can grow, and one query per version is enough.
        if made.renewed or not may_grow(described):
            return made
        now = self._format.renew(described)
        # The types are unchanged, so the value has, for example, a label that was dropped. All later
        # rows of this version are written column by column, without another query.
        renewed: T = (known or made).careful() if now is described else self.build(relation, now)
        renewed.renewed = now is described
        if known is not None:
            self.replace(relation, now, renewed)
        return renewed

    def compile(self, relation: Relation) -> T | None:
        made = super().compile(relation)
        # Versions of one shape share a plan, and the newest of them is kept longest.
        if made is not None:
            made.plan.seen = relation
        return made

    def envelope_schema(self, topic: str, row: Schema) -> Schema:
        name = self._capture.schema_name(f"{topic}.Envelope")
        return envelope.envelope_schema(name, row, self.source, self._format.envelope)

    def _mapper(self, *, null_to_default: bool) -> TypeMapper:
        options = replace(
            self._capture.types,
            on_misfit=self.nulls.note,
            replace_null_with_default=null_to_default,
        )
        return self._format.mapper(options)

    @abc.abstractmethod
    def _compiled(self, plan: EventPlan) -> T:
        """Compile ``plan``."""


class ConnectTables(RowTables[ConnectTable]):
    """Keep the conversions of a pipeline's relations."""

    def _compiled(self, plan: EventPlan) -> ConnectTable:
        return self._made(plan, careful=False)

    def _made(self, plan: EventPlan, *, careful: bool) -> ConnectTable:
        shape = table_shape(plan, self._capture, self._types, announced=self._format.announced)
        relation = plan.relation
        guard = key_guard = partial(_of_labels, relation)
        if careful:
            guard = partial(self._careful, relation, key=False)
            key_guard = partial(self._careful, relation, key=True)

        def rows(row: Schema, key: Schema, *, read: bool) -> ImageLayout:
            return ImageLayout(
                row=connect_values(shape.values, plan.cell, read=read, guard=guard),
                key=connect_values(
                    shape.keys, plan.cell, read=read, extra=plan.key_field, guard=key_guard
                ),
                key_schema=key if shape.has_key else None,
                value_schema=self.envelope_schema(plan.topic, row),
            )

        streamed = rows(shape.row, shape.key, read=False)
        same = shape.row == shape.read_row and shape.key == shape.read_key
        as_read = any(
            c.mapping.read or c.mapping.streamed_as_null for c in (*shape.values, *shape.keys)
        )
        read = streamed
        if not same or as_read:
            read = rows(shape.read_row, shape.read_key, read=True)
        # Encoders are found by the schema object, so both kinds share one.
        if same:
            read = replace(read, key_schema=streamed.key_schema, value_schema=streamed.value_schema)
        twin: Callable[[], ConnectTable] = cache(
            lambda: made if careful else self._made(plan, careful=True)
        )
        made = ConnectTable(plan=plan, shape=shape, streamed=streamed, read=read, careful=twin)
        return made

    def _careful(
        self, relation: Relation, column: ShapeColumn, convert: Convert, *, key: bool
    ) -> Convert:
        """Return ``convert`` with a report of values that do not fit."""

        def with_care(value: Any) -> Any:
            try:
                return convert(value)
            except MISFITS as cause:
                self.nulls.unfit("records", relation, column.index, cause, key=key)
                return convert(None)

        return with_care


def _of_labels(relation: Relation, column: ShapeColumn, convert: Convert) -> Convert:
    """Return ``convert`` with a check of an enum's labels.

    The conversion raises for a label that the schema does not list.
    """
    data_type = None if column.mapping.converted else relation.columns[column.index].data_type
    root = None if data_type is None else root_type(data_type)
    if root is not None and root.kind is TypeKind.ARRAY:
        root = root.element
    if root is None or root.kind is not TypeKind.ENUM:
        return convert
    labels = frozenset(root.labels)

    def of_labels(value: Any) -> Any:
        converted = convert(value)
        if value.__class__ is str and not labels.issuperset(_written(converted)):
            raise KeyError("a label that the type did not have")
        return converted

    return of_labels


F = TypeVar("F")


class RowFormat(Format, Generic[T, F]):
    """Turn changes into Debezium's events.

    A frame has what the events of one part share, and the list that gets their records.
    """

    # Names the format in errors.
    _encoder = "json"
    # Whether `_add` renders rows; otherwise transforms of events may still remove a value.
    _renders = True

    def __init__(self, tables: RowTables[T], context: FormatContext) -> None:
        self._tables, self._capture = tables, context.capture
        shape = context.capture.properties
        self._tombstones, self._skip_unchanged = shape.tombstones, shape.skip_unchanged
        self._order = context.order if shape.provide_transaction_metadata else None
        self._skip_updates = "u" in self._capture.skipped
        # An update may change the key, which gives a delete and a create: `_change` skips the others.
        skipped = {kind for kind, op in OPERATIONS.items() if op in self._capture.skipped}
        self._skipped = frozenset(skipped - {CHANGED})
        self._content = CONTENT_FORMS[shape.binary_handling_mode]

    def prepare(self, relation: Relation) -> None:
        self._tables.of(relation)

    def forget(self, oid: int) -> None:
        self._tables.forget(oid)

    @abc.abstractmethod
    def _add(
        self,
        table: T,
        op: str,
        lsn: int,
        frame: F,
        *,
        key: Tuple | None,
        before: Tuple | None = None,
        after: Tuple | None = None,
        headers: tuple[Any, ...] = (),
        tombstone: bool = False,
    ) -> None:
        """Count an event and append its record.

        The row images are converted before: one that does not fit raises one of `MISFITS`, and nothing
        is counted. The ``headers`` precede the usual ones; a tombstone does not count.
        """

    @abc.abstractmethod
    def _message(self, change: LogicalMessage, frame: F) -> None:
        """Append the record of a logical message."""

    @abc.abstractmethod
    def _text(self, table: T, row: Tuple) -> str:
        """Return the text of a row, the same for equal rows."""

    @abc.abstractmethod
    def _key_header(self, table: T, name: str, row: Tuple) -> tuple[Any, ...]:
        """Return the headers with the key of a row."""

    def _single(self, kind: str, change: Any, frame: F) -> None:
        """Append the records of one change."""
        if kind is TRUNCATES:
            for relation in change.relations:
                table = self._tables.of(relation)
                if table is not None:
                    self._add(table, "t", change.lsn, frame, key=None)
            return
        if kind is MESSAGES:
            if self._capture.message_prefix(change.prefix):
                self._message(change, frame)
            return
        relation = change.relation
        table = self._tables.compiled.get(relation) or self._tables.of(relation)
        if table is None:
            return
        try:
            self._change(kind, table, change, frame)
        except MISFITS:
            # All images are converted before any event is counted or appended, so the second attempt
            # does not count twice.
            table = self._tables.renewed(relation, table)
            try:
                self._change(kind, table.careful(), change, frame)
            except MISFITS as cause:
                raise table.plan.wrong_tuple(self._encoder, change.lsn) from cause

    def _change(self, kind: str, table: T, change: Any, frame: F) -> None:
        lsn = change.lsn
        if kind is INSERTS or kind is UPDATES:
            self._add(table, OPERATIONS[kind], lsn, frame, key=change.new, after=change.new)
        elif kind is DELETES:
            images = table.plan.delete(change)
            if images is not None:
                self._delete(table, *images, lsn, frame)
        else:
            before, after, old = table.plan.update(change, table.same_key)
            if old is not None:
                self._key_change(table, old, after, lsn, frame)
                return
            if self._skip_updates:
                return
            if (
                self._skip_unchanged
                and before is not None
                and self._text(table, before) == self._text(table, after)
            ):
                return
            self._add(table, "u", lsn, frame, key=after, before=before, after=after)

    def _key_change(self, table: T, old: Tuple, new: Tuple, lsn: int, frame: F) -> None:
        """Append a delete and a create."""
        if self._renders:
            # A value that does not fit must fail here, before the delete counts its event.
            self._text(table, new)
        new_key = self._key_header(table, NEW_KEY, new)
        old_key = self._key_header(table, OLD_KEY, old)
        if DELETES not in self._skipped:
            self._delete(table, old, old, lsn, frame, new_key)
        if INSERTS not in self._skipped:
            self._add(table, "c", lsn, frame, key=new, after=new, headers=old_key)

    def _delete(
        self,
        table: T,
        before: Tuple,
        key: Tuple,
        lsn: int,
        frame: F,
        headers: tuple[Any, ...] = (),
    ) -> None:
        """Append a delete and its tombstone."""
        keyed = key if not table.plan.keyless_deletes else None
        self._add(table, "d", lsn, frame, key=keyed, before=before, headers=headers)
        if self._tombstones and keyed is not None:
            self._add(table, "d", lsn, frame, key=key, headers=headers, tombstone=True)


def _written(value: Any) -> Iterator[str]:
    """Yield the labels in an enum or array."""
    if isinstance(value, list):
        for item in value:
            yield from _written(item)
    elif value is not None:
        yield value
