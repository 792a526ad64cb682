"""Histories and values that decoders give, and what they say of tables."""

import gc
import math
import tracemalloc
from typing import Any

import msgspec
import pytest
from tests.harness import decoderbufs_wire as wire
from tests.harness.captures import decoderbufs, reported, wal2json
from tests.harness.decoder_wires import LSN, WIRES, Known, frames, table

from waltap.changes.decode import (
    ABSENT,
    UNCHANGED,
    Column,
    DataType,
    Decoder,
    Delete,
    Insert,
    Message,
    OldTuple,
    Relation,
    RelationSeen,
    Skipped,
    Truncate,
    TypeKind,
    Update,
)
from waltap.errors import DecodeError
from waltap_decoders import named_relations
from waltap_testing.recording import StaticCatalogue


class Catalogue(StaticCatalogue):
    """A catalogue with the table public.t, which may be changed as by ALTER TABLE."""

    def __init__(self, *columns: Column, identity: str = "d") -> None:
        super().__init__()
        self.alter(*columns, identity=identity)

    def alter(self, *columns: Column, identity: str = "d") -> None:
        self.now = Relation(oid=5, schema="public", table="t", columns=columns, identity=identity)

    def relation(self, schema: str, table: str) -> Relation | None:
        return self.now if table == "t" else None


def fed(decoder: Decoder, begin: bytes, payloads: list[bytes]) -> list[Message]:
    messages = decoder.feed([(1, data) for data in (begin, *payloads)])
    return [m for m in messages[1:] if not isinstance(m, RelationSeen)]


# --- decoderbufs ---------------------------------------------------------------------------------


def protobuf(*payloads: bytes, catalogue: StaticCatalogue | None = None) -> list[Message]:
    decoder = decoderbufs(catalogue=catalogue or StaticCatalogue())
    return fed(decoder, wire.begin(), list(payloads))


INFINITY, MINUS_INFINITY = (1 << 63) - 1, -(1 << 63)
DOUBLES = [
    (-0.0, "-0"),
    (5e-324, "5e-324"),
    (math.nan, "NaN"),
    (-math.inf, "-Infinity"),
]
SINGLES = [
    (1e-45, "1e-45"),
    (-0.0, "-0"),
    (math.inf, "Infinity"),
]
DATUMS = [
    (21, wire.int32(-32768), "-32768"),
    (600, wire.point(1.5, -2), "(1.5,-2)"),
    *((700, wire.float32(value), text) for value, text in SINGLES),
    *((701, wire.float64(value), text) for value, text in DOUBLES),
    (790, wire.int64(1234567), "$12,345.67"),
    (1082, wire.int32(-735160), "0044-03-15 BC"),
    (1082, wire.int32(11016), "2000-02-29"),
    (1082, wire.int32(-2147472692), "infinity"),
    (1082, wire.int32(-2147472691), "-infinity"),
    (1082, wire.int32(-2440588), "4714-11-24 BC"),
    (1083, wire.int64(86400000000), "24:00:00"),
    (1114, wire.int64(-1), "1969-12-31 23:59:59.999999"),
    (1114, wire.int64(INFINITY), "infinity"),
    (1114, wire.int64(-9222426057709551617), "294276-12-31 23:59:59.999999"),
    (1184, wire.int64(MINUS_INFINITY), "-infinity"),
    (1184, wire.int64(-210835180800000000), "4713-11-24 00:00:00+00 BC"),
    (1266, wire.float64(25496789000), "07:04:56.789+00"),
    (1266, wire.float64(-3600e6), "23:00:00+00"),
    (1700, wire.text("1.500"), "1.500"),
]


@pytest.mark.parametrize(("oid", "value", "text"), DATUMS)
def test_datums_come_back_as_the_server_prints_them(oid, value, text):
    (row,) = protobuf(wire.insert(wire.datum("c", oid, value)))
    assert row.new == (text,)


@pytest.mark.parametrize("oid", [16, 1184, 70000])
def test_no_member_is_null_and_missing_is_unchanged(oid):
    (row,) = protobuf(wire.insert(wire.datum("a", oid), wire.datum("b", oid, wire.MISSING)))
    assert row.new == (None, UNCHANGED)


ID, OLD_ID = wire.datum("id", 23, wire.int32(2)), wire.datum("id", 23, wire.int32(1))
V, NO_V = wire.datum("v", 1043, wire.text("x")), wire.datum("v", 1043)
INFO = [wire.type_info("integer"), wire.type_info("character varying(10)")]
UPDATE = wire.message(wire.UPDATE, table=wire.TABLE, new=[ID, V], old=[OLD_ID, NO_V], info=INFO)
DELETE = wire.message(wire.DELETE, table=wire.TABLE, old=[OLD_ID, NO_V])
WITH_VARCHAR = (
    Column(name="id", type_oid=23, in_identity=True),
    Column(name="v", type_oid=1043, typmod=14),
)


def test_old_rows_of_an_unknown_table_have_what_they_show():
    (row,) = protobuf(DELETE)
    assert (row.old, row.old_kind) == (("1", ABSENT), OldTuple.KEY)


def test_rows_without_identity_are_counted_or_reported_as_unknown():
    update = wire.message(wire.UPDATE, table=wire.TABLE)
    delete = wire.message(wire.DELETE, table=wire.TABLE)
    nothing = Catalogue(*WITH_VARCHAR, identity="n")
    skipped, deleted = protobuf(update, delete, catalogue=nothing)
    assert isinstance(skipped, Skipped)
    assert isinstance(deleted, Delete)
    assert (deleted.old, deleted.old_kind) == ((), OldTuple.NONE)


@pytest.mark.parametrize(
    ("oid", "modifier", "typmod"),
    [
        (1700, "numeric(10,2)", 655366),
        (1700, "numeric", -1),
        (1231, "numeric(5,-2)[]", (5 << 16 | 0xFFFE) + 4),
        (1015, "character varying(5)[]", 9),
        (1042, "character(5)", 9),
        (1114, "timestamp(3) without time zone", 3),
        (25, "text", -1),
    ],
)
def test_typmods_are_read_from_the_type_s_text(oid, modifier, typmod):
    (row,) = protobuf(wire.insert(wire.datum("c", oid), info=[wire.type_info(modifier)]))
    assert row.relation.columns[0].typmod == typmod


@pytest.mark.parametrize(
    ("written", "schema", "table"),
    [
        ('"Odd Schema"."Odd ""T.a,b"', "Odd Schema", 'Odd "T.a,b'),
        ('public."order"', "public", "order"),
        ('"a.b".c', "a.b", "c"),
    ],
)
def test_table_names_are_unquoted(written, schema, table):
    (row,) = protobuf(wire.insert(wire.datum('"q""uote"', 23), table=written))
    assert (row.relation.schema, row.relation.table) == (schema, table)
    assert row.relation.columns[0].name == 'q"uote'


# --- wal2json ------------------------------------------------------------------------------------


def action(kind: str, columns: dict[str, tuple[int, str]] | None = None, **more: object) -> str:
    parts = [f'"action":"{kind}"', '"xid":7', '"timestamp":null', '"origin":0', '"lsn":"0/10"']
    if kind in "BC":
        parts.append('"nextlsn":"0/20"')
    else:
        parts += ['"schema":"public"', '"table":"t"']
    for name, listed in (("columns", columns), ("identity", more.get("identity"))):
        if listed is not None:
            inner = ",".join(
                f'{{"name":{msgspec.json.encode(column).decode()},"typeoid":{oid},"value":{value}}}'
                for column, (oid, value) in listed.items()  # type: ignore[attr-defined]
            )
            parts.append(f'"{name}":[{inner}]')
    return "{" + ",".join(parts) + "}"


def feed(catalogue: StaticCatalogue, *texts: str, **options: object) -> list[Message]:
    decoder = wal2json(catalogue=catalogue, **options)
    return fed(decoder, action("B").encode(), [text.encode() for text in texts])


@pytest.mark.parametrize(
    ("oid", "json", "text"),
    [
        (26, "4294967295", "4294967295"),
        (1700, "9" * 5000, "9" * 5000),
        (701, "-0", "-0"),
        (700, "3.4028235e+38", "3.4028235e+38"),
        (25, r'"a\"b\\c\b\f\n\r\tA\u0001é😀"', 'a"b\\c\b\f\n\r\tA\x01é😀'),
        (1114, '"infinity"', "infinity"),
    ],
)
def test_values_come_back_as_the_server_prints_them(oid, json, text):
    (row,) = feed(StaticCatalogue(), action("I", {"c": (oid, json)}))
    assert row.new == (text,)


def test_special_numbers_are_distinguished_when_numbers_come_as_strings():
    columns = {
        "a": (701, '"NaN"'),
        "b": (1700, '"-Infinity"'),
        "c": (23, '"-5"'),
        "d": (700, "null"),
    }
    option = {"wal2json__numeric_OF_data_OF_types_OF_as_OF_string": True}
    (row,) = feed(StaticCatalogue(), action("I", columns), **option)
    assert row.new == ("NaN", "-Infinity", "-5", None)
    assert wal2json(**option).capabilities.special_numbers


def test_type_oids_are_printed_signed():
    (row,) = feed(StaticCatalogue(), action("I", {"c": (-16, '"x"')}))
    assert row.relation.columns[0].type_oid == 4294967280


TEXT = DataType(oid=25, schema="pg_catalog", name="text")
MOOD = DataType(oid=90000, schema="public", name="mood", kind=TypeKind.ENUM)
KEY = Column(name="id", type_oid=23, in_identity=True)
LONG = Column(name="v", type_oid=25, data_type=TEXT)
LONGER = Column(name="w", type_oid=25, data_type=TEXT)
NUMBER = Column(name="n", type_oid=23)
ENUM = Column(name="m", type_oid=90000, data_type=MOOD)
ONE, TEN, X = (23, "1"), (23, "10"), (25, '"x"')
FULL = action("I", {"id": ONE, "v": X})
PART = action("U", {"id": ONE, "v": X}, identity={"id": ONE})


@pytest.mark.parametrize("missing", [NUMBER, ENUM], ids=["integer", "enum"])
def test_a_value_that_cannot_be_toasted_is_never_unchanged(missing):
    (row,) = feed(Catalogue(KEY, LONG, missing), PART)
    assert row.new == ("1", "x")


def test_a_dropped_column_is_not_unchanged():
    catalogue = Catalogue(KEY, LONG, LONGER)
    decoder = wal2json(catalogue=catalogue)
    fed(decoder, action("B").encode(), [action("I", {"id": ONE, "v": X, "w": X}).encode()])
    catalogue.alter(KEY, LONG)
    alter_table = [action("B"), action("C")]  # a transaction without rows
    texts = [PART, action("C"), *alter_table, action("B"), PART]
    messages = decoder.feed([(3, text.encode()) for text in texts])
    before, after = [m for m in messages if isinstance(m, Update)]
    assert before.new == ("1", "x", UNCHANGED)
    assert after.new == ("1", "x")


def test_rows_from_before_a_change_to_full_identity_have_keys():
    (row,) = feed(Catalogue(KEY, LONG, identity="f"), action("D", identity={"id": ONE}))
    assert (row.old, row.old_kind) == (("1", ABSENT), OldTuple.KEY)


def test_a_table_nobody_knows_is_what_its_rows_are():
    texts = FULL, action("D", identity={"id": ONE}), action("T")
    insert, delete, truncate = feed(StaticCatalogue(), *texts)
    assert isinstance(insert, Insert)
    assert insert.relation.oid == 0
    assert delete.old == ("1", ABSENT)
    assert isinstance(truncate, Truncate)
    assert truncate.relations == (delete.relation,)


def test_a_truncate_of_a_table_that_is_not_captured_is_counted_with_its_rows():
    texts = action("I", {"id": ONE}), action("T"), action("I", {"id": TEN})
    (skipped,) = feed(Catalogue(KEY), *texts, captures=lambda _schema, _table: False)
    assert isinstance(skipped, Skipped)
    assert skipped.count == 3


def test_options_avoid_what_breaks_the_json_and_chunks_are_of_format_1():
    options = wal2json("2", chunks=True).start_options()
    assert options["format-version"] == "2"
    assert (options["include-types"], options["include-type-oids"]) == ("false", "true")
    assert not {"include-default", "write-in-chunks"} & set(options)
    assert wal2json("1", chunks=True).start_options()["write-in-chunks"] == "true"
    assert not wal2json("1").capabilities.truncate


# --- what every decoder makes of one history, and what each refuses: one table, in the words of each plugin


T = "public.t"
COLUMNS = (("id", 25, True), ("v", 25, False))
B, C = ("B",), ("C",)
PLUGINS = pytest.mark.parametrize("plugin", WIRES)
WITH_BEGIN = ["pgoutput", "wal2json 2", "decoderbufs"]
"""Plugins whose transactions have a message for their begin and their end."""


def relation() -> Relation:
    return table(COLUMNS)


def decode(plugin: str, made: Relation, steps: list[Any], **more: Any) -> list[Message]:
    return WIRES[plugin][0](catalogue=Known(made), **more).feed(frames(plugin, made, steps))


@PLUGINS
def test_long_and_odd_texts_come_back(plugin):
    """Twice: the first of a kind is read with care, those after it by a compiled reader."""
    steps = [("I", ("é" * 65536, 'q"\\\x01\n😀,[{')), ("I", ("x" * 256, "t\x01n"))] * 2
    found = reported(decode(plugin, relation(), [B, *steps, C]))
    assert found == [*((kind, T, *rows) for kind, *rows in steps), ("C",)]


@PLUGINS
def test_rows_of_tables_that_are_not_captured_are_counted_and_not_read(plugin):
    steps = [B, ("I", ("1", "a")), ("D", ("1", ABSENT)), C]
    messages = decode(plugin, relation(), steps, captures=lambda _schema, _table: False)
    assert [type(m).__name__ for m in messages if not isinstance(m, RelationSeen)] == [
        "Begin", "Skipped", "Commit",
    ]  # fmt: skip
    assert [m.count for m in messages if isinstance(m, Skipped)] == [2]


@pytest.mark.parametrize("rows", [0, 2])
@pytest.mark.parametrize("lacks", [UNCHANGED, None])
@PLUGINS
def test_a_new_row_without_a_value_that_identifies_it_is_refused(plugin, lacks, rows):
    """Other values may be left out: a row filter makes an INSERT of an UPDATE."""
    known = [("I", ("a", None if "1" in plugin or "chunks" in plugin else UNCHANGED))] * rows
    assert len(reported(decode(plugin, relation(), [B, *known, C]))) == rows + 1
    with pytest.raises(DecodeError, match="which identifies the new row"):
        decode(plugin, relation(), [B, *known, ("I", (lacks, "b")), C])


def test_an_insert_that_lacks_a_value_is_the_update_that_it_was():
    """An update moved the row into a row filter: PostgreSQL sends an INSERT, whose large values may be missing."""
    found = decode("pgoutput", relation(), [B, ("I", ("1", UNCHANGED)), ("I", ("2", "b")), C])
    assert reported(found) == [("U", T, ("1", UNCHANGED), ()), ("I", T, ("2", "b")), ("C",)]


@pytest.mark.parametrize("plugin", WITH_BEGIN)
@pytest.mark.parametrize(
    "steps",
    [[C], [("I", ("1", "a"))], [B, B], [B, C, C], [B, C, ("D", ("1", ABSENT))]],
    ids=["commit alone", "row alone", "begin twice", "commit twice", "row behind"],
)
def test_messages_out_of_order_are_refused(plugin, steps):
    with pytest.raises(DecodeError) as caught:
        decode(plugin, relation(), steps)
    assert caught.value.lsn == LSN


def _beside(plugin: str, name: str) -> list[bytes]:
    """Return a transaction with a row of a table that is not captured."""
    if plugin == "decoderbufs":
        row = wire.datum("id", 23, wire.int32(1))
        return [wire.begin(), wire.insert(row, table=f"public.{name}"), wire.commit()]
    relation = table([("id", 23, True)])
    payloads = WIRES["wal2json 2"][1](relation, [("B",), ("I", ("1",)), ("C",)])
    return [each.replace(b'"table":"t"', f'"table":"{name}"'.encode()) for each in payloads]


@pytest.mark.parametrize("make", [wal2json, decoderbufs])
def test_names_of_tables_that_are_not_captured_do_not_stay(make):
    decoder = make(captures=lambda _schema, _table: False)

    def kept_after(names: range) -> int:
        for name in names:
            decoder.feed([(LSN, each) for each in _beside(decoder.name, f"job_{name:05}")])
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    kept_after(range(256))
    tracemalloc.start()
    try:
        before = kept_after(range(256, 512))
        assert kept_after(range(512, 1024)) < before + 20_000
    finally:
        tracemalloc.stop()


def test_plans_of_rows_that_leave_out_ever_other_columns_do_not_stay(monkeypatch):
    """Format 1 leaves NULL out of old rows."""
    monkeypatch.setattr(named_relations, "MAX_PLANS", 20)
    columns = [Column(name=f"c{n}", type_oid=23, in_identity=True) for n in range(7)]
    decoder = wal2json("1", catalogue=Catalogue(KEY, *columns, identity="f"))

    def plans() -> int:
        gc.collect()
        return sum(isinstance(each, named_relations.RowPlan) for each in gc.get_objects())

    before = plans()
    for given in range(128):
        names = ["id", *(f"c{n}" for n in range(7) if given >> n & 1)]
        ones = [1] * len(names)
        old = {"keynames": names, "keytypeoids": [23] * len(names), "keyvalues": ones}
        change = {"kind": "delete", "schema": "public", "table": "t", "oldkeys": old}
        data = msgspec.json.encode({"xid": 7, "nextlsn": "0/10", "change": [change]})
        (row,) = [m for m in decoder.feed([(LSN, data)]) if isinstance(m, Delete)]
        assert row.old == ("1", *("1" if each.name in names else None for each in columns))
    assert plans() - before <= 20
