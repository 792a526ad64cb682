"""Columns with a conversion: what tuples carry, and that Avro's quick rows are those of its general way."""

from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.harness.json_events import part
from tests.harness.schemas import BYTES, INT32, INT64, MAYBE_TEXT, TEXT, array, mapped, of, struct
from tests.harness.typed_records import NOW, UnregisteredAvro, context

from waltap.base.plugin_errors import UnusableResult
from waltap.changes.decode.message import Insert, OldTuple, Update
from waltap.changes.decode.relation import Column, DataType, Relation, TypeKind
from waltap.changes.decode.tuple_image import UNCHANGED
from waltap.changes.events.event import Record
from waltap.changes.mapping.connect_schema import Schema
from waltap.changes.mapping.conversion import ColumnConversion, carried, conversion_mapping
from waltap.changes.mapping.type_mapping import TypeOptions, types_named
from waltap.changes.mapping.type_registry import TypeRegistry, simple_type
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, TransactionPart
from waltap.encoders.format.conversion import with_one_converter
from waltap.encoders.format.converted import ConvertedFormat, RecordConverters
from waltap.encoders.format.format import FormatContext
from waltap.encoders.json.codec import MISFITS
from waltap.pipeline.stages.conversions import ColumnConversions, ConverterFailed
from waltap_formats.avro.rows import FEWEST
from waltap_testing.installed import installed_types
from waltap_testing.workload import ITEMS

STRUCT = struct({"data": of("bytes", optional=True), "size": of("float64")}, "Struct")
VALUES: list[tuple[Schema, Any]] = [
    (TEXT, 'é "x"'),
    (BYTES, b"\x00\xff"),
    (of("boolean"), True),
    (INT32, 2**31 - 1),
    (INT64, -(2**63)),
    (of("float64"), float("inf")),
    (array(BYTES), [b"a", b""]),
    (mapped(TEXT, INT32), {"a": 1}),
    (STRUCT, {"data": b"x", "size": 2.5}),
]
LABELS = DataType(
    oid=20_000, schema="public", name="mood", kind=TypeKind.ENUM, labels=("calm", "wild")
)


@pytest.mark.parametrize(("schema", "value"), VALUES, ids=[s.kind.value for s, _ in VALUES])
def test_a_value_comes_back_as_it_was(schema, value):
    mapping = conversion_mapping(ColumnConversion(schema=schema, values=list), TypeOptions())
    text = carried(schema, value)
    assert text is not None
    assert mapping.to_connect(text) == value
    assert mapping.json(text) == text


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (of("int8"), 128),
        (TEXT, b"x"),
        (TEXT, "\ud800"),
        (TEXT, None),
        (STRUCT, {"data": b"x"}),
        (STRUCT, {"size": 1.0, "more": 2}),
        (array(BYTES), ["x"]),
    ],
)
def test_what_is_no_value_of_the_schema_is_reported(schema, value):
    with pytest.raises(TypeError, match="it gave"):
        carried(schema, value)


def with_enum() -> Relation:
    mood = Column(name="mood", type_oid=20_000, data_type=LABELS, nullable=True)
    return msgspec.structs.replace(ITEMS, columns=(ITEMS.columns[0], mood))


def converting(conversion: ColumnConversion, mode: str = "warn") -> tuple[ColumnConversions, Any]:
    def of_mood(_relation: Relation, column: Column) -> ColumnConversion | None:
        return conversion if column.name == "mood" else None

    made = context(**{"event.converting.failure.handling.mode": mode})
    conversions = ColumnConversions([("acme", of_mood)], made.capture, made.describe)
    types = replace(
        made,
        mapper=lambda options: TypeRegistry(installed_types(), options, conversions.of),
    )
    return conversions, types


def rendered(parts: Any, made: FormatContext, *, straight: bool) -> list[Record]:
    avro = UnregisteredAvro(straight=straight)
    form = ConvertedFormat(RecordConverters(key=avro, value=avro, header=avro), made)
    return list(form.render(parts, NOW))


@pytest.mark.parametrize(("schema", "value"), VALUES, ids=[s.kind.value for s, _ in VALUES])
def test_avros_quick_rows_are_those_of_its_general_way(schema, value):
    optional = msgspec.structs.replace(schema, optional=True)
    conversion = ColumnConversion(
        schema=optional, values=lambda texts: [t if t is None else value for t in texts]
    )
    conversions, made = converting(conversion)
    relation = with_enum()
    rows = [("1", "calm"), ("2", None), ("3", "wild"), ("4", UNCHANGED)] * 8
    inserts = [Insert(relation, 16 + n, row) for n, row in enumerate(rows)]
    batch = conversions(Batch(parts=[part(*inserts)], position=Position(99), events=len(rows)))

    assert rendered(batch.parts, made, straight=True) == rendered(batch.parts, made, straight=False)


@pytest.mark.parametrize("other", [5, "ab", None])
def test_avros_bytes_outside_of_a_record_are_nothing_else(other):
    encode = UnregisteredAvro(straight=True).encoder("t", BYTES)
    assert encode(b"ab") == b"\0\0\0\0\1ab"
    with pytest.raises(MISFITS):
        encode(other)


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_floats_of_a_plugins_type_have_its_values_in_whole_columns(kind):
    percent = simple_type(
        "percent",
        summary="percentages",
        claims=types_named("percent"),
        schema=of(kind),
        parse=lambda text: float(text) / 100,
        zero=0.0,
        arrow=pa.float64,
    )
    data_type = DataType(oid=20_001, schema="public", name="percent")
    column = Column(name="p", type_oid=data_type.oid, data_type=data_type, nullable=True)
    relation = msgspec.structs.replace(ITEMS, columns=(ITEMS.columns[0], column))
    made = replace(
        context(), mapper=lambda options: TypeRegistry([percent, *installed_types()], options)
    )
    inserts = [Insert(relation, 16 + n, (str(n), "12.5")) for n in range(FEWEST)]
    assert rendered([part(*inserts)], made, straight=True) == rendered(
        [part(*inserts)], made, straight=False
    )


def test_old_keys_have_no_value_in_other_columns():
    """The server sends NULL for them: what a converter makes of NULL is not there."""
    conversions, _ = converting(
        ColumnConversion(schema=MAYBE_TEXT, values=lambda texts: ["x"] * len(texts))
    )
    relation = with_enum()
    changes = [
        Update(relation, 16, ("2", None), ("1", None), OldTuple.KEY),
        Update(relation, 17, ("2", None), ("2", None), OldTuple.FULL),
    ]
    batch = conversions(Batch(parts=[part(*changes)], position=Position(99), events=2))
    (found,) = batch.parts
    assert isinstance(found, TransactionPart)
    assert [(change.new, change.old) for change in found.changes if isinstance(change, Update)] == [
        (("2", '"x"'), ("1", None)),
        (("2", '"x"'), ("2", '"x"')),
    ]


def test_too_few_values_and_wrong_answers_name_converter_and_column():
    conversions, _ = converting(
        ColumnConversion(schema=MAYBE_TEXT, values=lambda _texts: []), "fail"
    )
    batch = Batch(
        parts=[part(Insert(with_enum(), 16, ("1", "calm")))], position=Position(99), events=1
    )
    with pytest.raises(ConverterFailed, match="acme of column mood of .* at LSN 0/10 failed"):
        conversions(batch)
    wrong, _ = converting("no conversion")  # type: ignore[arg-type]
    with pytest.raises(ConverterFailed, match="gave str instead of a ColumnConversion"):
        wrong(batch)


@pytest.mark.parametrize("made", [None, object()])
def test_what_is_no_converter_is_named_with_its_factory(made):
    def make(_properties: object, _context: object) -> Any:
        return made

    with pytest.raises(
        UnusableResult, match=r"make gave \w+, no Converter: encoder, text is missing"
    ):
        with_one_converter(make)(None, context())
