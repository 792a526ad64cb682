"""Keep the JSON codecs of a pipeline's relations."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from waltap.changes.capture.source_type import may_grow
from waltap.changes.decode.relation import Relation
from waltap.changes.events import CellShape, EventPlan, EventPlans
from waltap.changes.events.event import Header
from waltap.changes.events.shape import ShapeColumn, table_shape
from waltap.changes.mapping import envelope
from waltap.changes.mapping.connect_schema import Schema
from waltap.changes.mapping.conversion import from_json
from waltap.changes.mapping.json_schema import quote, schema_json
from waltap.changes.mapping.type_mapping import TypeOptions
from waltap.encoders.format.converter import value_unfit
from waltap.encoders.format.format import FormatContext
from waltap.encoders.json.codec import (
    MISFITS,
    ColumnCodec,
    RowCodec,
    always_null,
    celled,
    column_codec,
    guarded,
    no_twin,
)
from waltap.encoders.json.null_notice import NullNotice
from waltap.encoders.json.properties import JsonProperties


def wrapping(schema: Schema, *, enabled: bool) -> tuple[str, str]:
    """Return the texts before and after a payload.

    Both are "" where schemas are not enabled.
    """
    return (f'{{"schema":{schema_json(schema)},"payload":', "}") if enabled else ("", "")


def header_writer(
    schema: Schema, properties: JsonProperties, context: FormatContext
) -> Callable[[str], bytes]:
    """Return the writer of header values from their JSON."""
    if context.header is None:
        before, after = wrapping(schema, enabled=properties.header_schemas)
        return lambda text: f"{before}{text}{after}".encode()
    # Another format's converter needs the value, not its JSON.
    encode = context.header.encoder("", schema)

    def write(text: str) -> bytes:
        try:
            return encode(from_json(schema, text)) or b""
        except MISFITS as cause:
            raise value_unfit(cause, "a header", record_part="header") from cause

    return write


class JsonTables(EventPlans[RowCodec]):
    """Compile the plan of each relation at its first change.

    Compiling raises ConfigurationError when two columns get the same field name.
    """

    def __init__(
        self, properties: JsonProperties, context: FormatContext, headers: tuple[Header, ...]
    ) -> None:
        self._properties, self._format, self._headers = properties, context, headers
        self._capture = capture = context.capture
        mode = capture.types.event_converting_failure_handling_mode
        self.nulls = NullNotice(context.warn, mode)
        options = replace(capture.types, on_misfit=self.nulls.note)
        self._values = context.mapper(_with_nulls(options, properties.value_null_to_default))
        self._keys = self._values
        if properties.key_null_to_default != properties.value_null_to_default:
            self._keys = context.mapper(_with_nulls(options, properties.key_null_to_default))
        self.source = envelope.source_schema(context.connector, context.envelope)
        super().__init__(context.plans(self._values), self._codec)

    def renewed(self, relation: Relation, codec: RowCodec) -> RowCodec:
        """Return the codec for a row that ``codec`` cannot render.

        An enum may have a new label, or a composite type a new attribute.
        """
        described = self.described(relation)
        # Only such types can grow, and one query per version is enough.
        if described is None or codec.renewed or not may_grow(described):
            return codec
        now = self._format.renew(described)
        # The types are unchanged, so the value has, for example, a label that was dropped. All later
        # rows of this version are written column by column, without another query.
        if now is described:
            renewed = codec.careful()
            renewed.careful = lambda: renewed
        else:
            renewed = self.build(relation, now)
        renewed.renewed = now is described
        self.replace(relation, now, renewed)
        return renewed

    def value_prefix(self, topic: str, row: Schema) -> bytes:
        """Return the text before the payload of values.

        Their rows have the schema ``row``.
        """
        name = self._capture.schema_name(f"{topic}.Envelope")
        enabled = self._properties.value_schemas
        value = envelope.envelope_schema(name, row, self.source, self._format.envelope)
        return wrapping(value, enabled=enabled)[0].encode()

    def key_texts(self, key: Schema) -> tuple[str, str]:
        return wrapping(key, enabled=self._properties.key_schemas)

    def _codec(self, plan: EventPlan) -> RowCodec:
        properties, topic, extra = self._properties, plan.topic, plan.key_field
        shape = table_shape(plan, self._capture, self._keys, announced=self._format.announced)
        streamed, read = _codecs(shape.values, plan.cell)
        keys, read_keys = _codecs(shape.keys, plan.cell, of_key=True)

        def compiled(
            values: list[ColumnCodec],
            keys: list[ColumnCodec],
            key: Schema,
            value: Schema,
            careful: Callable[[], RowCodec],
            snapshot: Callable[[], RowCodec] | None = None,
        ) -> RowCodec:
            return RowCodec(
                plan=plan,
                columns={column.index: column for column in values},
                key_columns={column.index: column for column in keys},
                row_schema=value,
                key_schema=key,
                prefix=self.value_prefix(topic, value),
                key_texts=wrapping(key, enabled=properties.key_schemas),
                key_header=header_writer(key, properties, self._format),
                key_tail=f"{quote(extra[0])}:{quote(extra[1])}" if extra else "",
                headers=self._headers,
                careful=careful,
                snapshot=snapshot,
            )

        def with_careful(
            values: list[ColumnCodec],
            keys: list[ColumnCodec],
            key: Schema,
            value: Schema,
            snapshot: Callable[[], RowCodec] | None = None,
        ) -> RowCodec:
            def guard(column: ColumnCodec, *, of_key: bool) -> ColumnCodec:
                unfit = partial(self.nulls.unfit, "json", plan.relation, column.index, key=of_key)
                return guarded(column, column.other(None), unfit)

            careful = _once(
                lambda: compiled(
                    [guard(each, of_key=False) for each in values],
                    [guard(each, of_key=True) for each in keys],
                    key,
                    value,
                    no_twin,
                )
            )
            return compiled(values, keys, key, value, careful, snapshot)

        same = shape.key == shape.read_key and shape.row == shape.read_row
        if same and read is streamed and read_keys is keys:
            return with_careful(streamed, keys, shape.key, shape.row)
        twin = _once(lambda: with_careful(read, read_keys, shape.read_key, shape.read_row))
        return with_careful(streamed, keys, shape.key, shape.row, twin)


def _codecs(
    columns: Iterable[ShapeColumn], cell: CellShape, *, of_key: bool = False
) -> tuple[list[ColumnCodec], list[ColumnCodec]]:
    """Return the column codecs of streamed rows and of snapshot rows."""
    streamed: list[ColumnCodec] = []
    read: list[ColumnCodec] = []
    for column in columns:
        index, name, mapping = column.index, column.field.name, column.mapping
        codec = column_codec(index, name, mapping, column.transform)
        other = mapping.read
        read.append(column_codec(index, name, other, column.transform) if other else codec)
        as_null = mapping.streamed_as_null and not of_key
        streamed.append(always_null(codec) if as_null else codec)
    same = read == streamed
    streamed, read = ([celled(column, cell) for column in each] for each in (streamed, read))
    return streamed, streamed if same else read


def _with_nulls(options: TypeOptions, to_default: bool) -> TypeOptions:
    return replace(options, replace_null_with_default=to_default)


def _once(make: Callable[[], RowCodec]) -> Callable[[], RowCodec]:
    codecs: list[RowCodec] = []

    def answer() -> RowCodec:
        if not codecs:
            codecs.append(make())
        return codecs[0]

    return answer
