"""Convert tuples of a pipeline's relations to Connect values."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from waltap.changes.capture.source_type import root_type
from waltap.changes.decode.relation import Relation, TypeKind
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.events import EventPlan, EventPlans
from waltap.changes.events.shape import ShapeColumn, TableShape, connect_values, table_shape
from waltap.changes.mapping import envelope
from waltap.changes.mapping.connect_schema import Schema
from waltap.encoders.format.format import FormatContext
from waltap.encoders.json.codec import MISFITS
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
class ConnectTable:
    """Hold the conversions of one relation version."""

    plan: EventPlan
    shape: TableShape
    streamed: ImageLayout
    read: ImageLayout
    # Whether the types were read again without news. If so, each conversion names its column in errors.
    renewed: bool = False
    # Direct writers of rows: True has the writers of snapshot rows, False of streamed rows.
    compiled: "dict[bool, Any]" = field(default_factory=dict)

    def same_key(self, old: Tuple, new: Tuple) -> bool:
        key = self.streamed.key
        return not self.shape.has_key or alike(key(old), key(new))


def alike(one: object, other: object) -> bool:
    """Return whether two values have the same text."""
    # ``==`` would be wrong: NaN must equal itself, and -0.0 must differ from 0.0.
    return repr(one) == repr(other)


class ConnectTables(EventPlans[ConnectTable]):
    """Compile the plan of each relation at its first change.

    Compiling raises ConfigurationError when two columns get the same field name.
    """

    def __init__(self, context: FormatContext) -> None:
        self._format, self._capture = context, context.capture
        mode = context.capture.types.event_converting_failure_handling_mode
        self.nulls = NullNotice(context.warn, mode)
        # Null stays null here, since the converters replace it by defaults.
        options = replace(
            context.capture.types, on_misfit=self.nulls.note, replace_null_with_default=False
        )
        self._types = context.mapper(options)
        self.source = envelope.source_schema(context.connector, context.envelope)
        super().__init__(context.plans(self._types), self._table)

    def renewed(self, relation: Relation, table: ConnectTable) -> ConnectTable:
        """Return the table for a row that ``table`` cannot convert.

        An enum may have a new label. If there is none, any value that does not fit becomes null, or an
        error that names the column. The row itself needs the table of `careful`.
        """
        known = self.compiled.get(relation)
        if known is not None and known is not table:
            return known
        if table.renewed:
            return table
        described = self.described(relation) or table.plan.relation
        now = self._format.renew(described)
        plan = EventPlan(relation, now, self._context)
        renewed = self._made(plan, careful=now is described)
        if self.described(relation) is not None:
            self.replace(relation, now, renewed)
        return renewed

    def careful(self, table: ConnectTable) -> ConnectTable:
        """Return the table that converts any row."""
        return table if table.renewed else self._made(table.plan, careful=True)

    def envelope_schema(self, topic: str, row: Schema) -> Schema:
        name = self._capture.schema_name(f"{topic}.Envelope")
        return envelope.envelope_schema(name, row, self.source, self._format.envelope)

    def _table(self, plan: EventPlan) -> ConnectTable:
        return self._made(plan, careful=False)

    def _made(self, plan: EventPlan, *, careful: bool) -> ConnectTable:
        shape = table_shape(plan, self._capture, self._types, announced=self._format.announced)
        relation = plan.relation
        guard = self._careful(relation, key=False) if careful else self._labels(relation)
        key_guard = self._careful(relation, key=True) if careful else guard

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
        return ConnectTable(plan=plan, shape=shape, streamed=streamed, read=read, renewed=careful)

    def _labels(self, relation: Relation) -> Callable[[ShapeColumn, Convert], Convert]:
        """Return the function that makes enums check their labels.

        The conversion raises for a label that the schema does not list.
        """

        def guard(column: ShapeColumn, convert: Convert) -> Convert:
            data_type = (
                None if column.mapping.converted else relation.columns[column.index].data_type
            )
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

        return guard

    def _careful(
        self, relation: Relation, *, key: bool
    ) -> Callable[[ShapeColumn, Convert], Convert]:
        """Return the function that makes conversions report misfits."""

        def guard(column: ShapeColumn, convert: Convert) -> Convert:
            def with_care(value: Any) -> Any:
                try:
                    return convert(value)
                except MISFITS as cause:
                    self.nulls.unfit("records", relation, column.index, cause, key=key)
                    return convert(None)

            return with_care

        return guard


def _written(value: Any) -> Iterator[str]:
    """Yield the labels in an enum or array."""
    if isinstance(value, list):
        for item in value:
            yield from _written(item)
    elif value is not None:
        yield value
