"""Keep the JSON codecs of a pipeline's relations."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial

from waltap.changes.events.event import Header
from waltap.changes.events.plan import CellShape, EventPlan
from waltap.changes.events.shape import ShapeColumn, table_shape
from waltap.changes.mapping.connect_schema import Schema
from waltap.changes.mapping.conversion import from_json
from waltap.changes.mapping.json_schema import quote, schema_json
from waltap.encoders.format.converter import value_unfit
from waltap.encoders.format.format import FormatContext
from waltap.encoders.format.tables import RowTables
from waltap.encoders.json.codec import (
    MISFITS,
    ColumnCodec,
    RowCodec,
    always_null,
    celled,
    column_codec,
    guarded,
)
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


class JsonTables(RowTables[RowCodec]):
    """Keep the JSON codecs of a pipeline's relations."""

    def __init__(
        self, properties: JsonProperties, context: FormatContext, headers: tuple[Header, ...]
    ) -> None:
        self._properties, self._headers = properties, headers
        super().__init__(context, null_to_default=properties.value_null_to_default)
        self._keys = self._types
        if properties.key_null_to_default != properties.value_null_to_default:
            self._keys = self._mapper(null_to_default=properties.key_null_to_default)

    def value_prefix(self, topic: str, row: Schema) -> bytes:
        """Return the text before the payload of values.

        Their rows have the schema ``row``.
        """
        value = self.envelope_schema(topic, row)
        return wrapping(value, enabled=self._properties.value_schemas)[0].encode()

    def key_texts(self, key: Schema) -> tuple[str, str]:
        return wrapping(key, enabled=self._properties.key_schemas)

    def _compiled(self, plan: EventPlan) -> RowCodec:
        properties, topic, extra = self._properties, plan.topic, plan.key_field
        shape = table_shape(plan, self._capture, self._keys, announced=self._format.announced)
        streamed, read = _codecs(shape.values, plan.cell)
        keys, read_keys = _codecs(shape.keys, plan.cell)

        def guarded_codecs(columns: Iterable[ColumnCodec], *, key: bool) -> dict[int, ColumnCodec]:
            return {
                each.index: guarded(
                    each,
                    each.other(None),
                    partial(self.nulls.unfit, "json", plan.relation, each.index, key=key),
                )
                for each in columns
            }

        def compiled(
            values: list[ColumnCodec],
            keys: list[ColumnCodec],
            key: Schema,
            value: Schema,
            snapshot: Callable[[], RowCodec] | None = None,
        ) -> RowCodec:
            def careful() -> RowCodec:
                twin = replace(
                    codec,
                    columns=guarded_codecs(values, key=False),
                    key_columns=guarded_codecs(keys, key=True),
                    snapshot=snapshot and (lambda: snapshot().careful()),
                    old_renderers=None,
                )
                twin.careful = lambda: twin
                return twin

            codec = RowCodec(
                plan=plan,
                columns={column.index: column for column in values},
                key_columns={column.index: column for column in keys},
                row_schema=value,
                key_schema=key,
                prefix=self.value_prefix(topic, value),
                key_texts=self.key_texts(key),
                key_header=header_writer(key, properties, self._format),
                key_tail=f"{quote(extra[0])}:{quote(extra[1])}" if extra else "",
                headers=self._headers,
                careful=cache(careful),
                snapshot=snapshot,
            )
            return codec

        same = shape.key == shape.read_key and shape.row == shape.read_row
        twin: Callable[[], RowCodec] | None = None
        if not same or read is not streamed or read_keys is not keys:
            twin = cache(lambda: compiled(read, read_keys, shape.read_key, shape.read_row))
        return compiled(streamed, keys, shape.key, shape.row, twin)


def _codecs(
    columns: Iterable[ShapeColumn], cell: CellShape
) -> tuple[list[ColumnCodec], list[ColumnCodec]]:
    """Return the column codecs of streamed rows and of snapshot rows."""
    streamed: list[ColumnCodec] = []
    read: list[ColumnCodec] = []
    for column in columns:
        index, name, mapping = column.index, column.field.name, column.mapping
        codec = column_codec(index, name, mapping, column.transform)
        other = mapping.read
        read.append(column_codec(index, name, other, column.transform) if other else codec)
        streamed.append(always_null(codec) if mapping.streamed_as_null else codec)
    same = read == streamed
    streamed, read = ([celled(column, cell) for column in each] for each in (streamed, read))
    return streamed, streamed if same else read
