"""decoderbufs: datums back to PostgreSQL's text, old rows, names, typmods."""

import math
import struct

import pytest
from tests.harness import decoderbufs_wire as wire
from tests.harness.captures import EmptyCatalogue, decoderbufs

from waltap.decode import ABSENT, UNCHANGED, Column, Delete, Message, OldTuple, Relation, Skipped
from waltap_decoders.decoderbufs.floats import float4_text, float8_text
from waltap_decoders.decoderbufs.moments import date_text, timestamp_text


def single(value: float) -> float:
    return struct.unpack("<f", struct.pack("<f", value))[0]


def feed(*payloads: bytes, catalogue: EmptyCatalogue | None = None) -> list[Message]:
    decoder = decoderbufs(catalogue=catalogue or EmptyCatalogue())
    messages = decoder.feed([(1, data) for data in (wire.begin(), *payloads)])
    return [m for m in messages[1:] if type(m).__name__ != "RelationSeen"]


INFINITY, MINUS_INFINITY = (1 << 63) - 1, -(1 << 63)


@pytest.mark.parametrize(
    ("oid", "value", "text"),
    [
        (16, wire.boolean(True), "t"),
        (16, wire.boolean(False), "f"),
        (17, wire.raw(b"\0\xff"), "\\x00ff"),
        (17, wire.raw(b""), "\\x"),
        (20, wire.int64(-(1 << 63)), "-9223372036854775808"),
        (21, wire.int32(-32768), "-32768"),
        (23, wire.int32(-1), "-1"),
        (25, wire.text(""), ""),
        (26, wire.int64(4294967295), "4294967295"),
        (600, wire.point(1.5, -2), "(1.5,-2)"),
        (700, wire.float32(1.1), "1.1"),
        (701, wire.float64(0.1 + 0.2), "0.30000000000000004"),
        (790, wire.int64(1234567), "$12,345.67"),
        (790, wire.int64(-1), "-$0.01"),
        (1082, wire.int32(-735160), "0044-03-15 BC"),
        (1082, wire.int32(-2147472692), "infinity"),
        (1082, wire.int32(-2147472691), "-infinity"),
        (1082, wire.int32(-2440588), "4714-11-24 BC"),
        (1082, wire.int32(2145042905), "5874897-12-31"),
        (1083, wire.int64(86400000000), "24:00:00"),
        (1083, wire.int64(1), "00:00:00.000001"),
        (1114, wire.int64(0), "1970-01-01 00:00:00"),
        (1114, wire.int64(-1), "1969-12-31 23:59:59.999999"),
        (1114, wire.int64(INFINITY), "infinity"),
        (1114, wire.int64(-9222426057709551617), "294276-12-31 23:59:59.999999"),
        (1184, wire.int64(MINUS_INFINITY), "-infinity"),
        (1184, wire.int64(-210835180800000000), "4713-11-24 00:00:00+00 BC"),
        (1266, wire.float64(25496789000), "07:04:56.789+00"),
        (1266, wire.float64(-3600e6), "23:00:00+00"),
        (1266, wire.float64(86400e6), "00:00:00+00"),
        (1700, wire.text("1.500"), "1.500"),
        (70000, wire.raw('it\'s "fine"'), 'it\'s "fine"'),
    ],
)
def test_datums_come_back_as_the_server_prints_them(oid: int, value: bytes, text: str) -> None:
    (row,) = feed(wire.insert(wire.datum("c", oid, value)))
    assert row.new == (text,)


@pytest.mark.parametrize("oid", [16, 17, 20, 25, 600, 701, 1184, 70000])
def test_no_member_is_null_and_missing_is_unchanged(oid: int) -> None:
    (row,) = feed(wire.insert(wire.datum("a", oid), wire.datum("b", oid, wire.MISSING)))
    assert row.new == (None, UNCHANGED)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e14, "100000000000000"),
        (1e15, "1e+15"),
        (123456789012345.0, "123456789012345"),
        (123456789012345680.0, "1.2345678901234568e+17"),
        (0.0001, "0.0001"),
        (0.00001, "1e-05"),
        (1e21, "1e+21"),
        (-0.0, "-0"),
        (5e-324, "5e-324"),
        (1.5, "1.5"),
        (-1234.5, "-1234.5"),
        (100.0, "100"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
        (math.nan, "NaN"),
        (-math.inf, "-Infinity"),
    ],
)
def test_doubles_are_laid_out_like_the_server_s(value: float, text: str) -> None:
    assert float8_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.1, "1.1"),
        (1e6, "1e+06"),
        (123456.0, "123456"),
        (1e-45, "1e-45"),
        (3.4028235e38, "3.4028235e+38"),
        (16777216.0, "1.6777216e+07"),
        (-0.0, "-0"),
        (0.0001, "0.0001"),
        (math.inf, "Infinity"),
    ],
)
def test_singles_have_the_fewest_digits_that_give_them_back(value: float, text: str) -> None:
    assert float4_text(single(value)) == text


@pytest.mark.parametrize("days", [-719528, -719469, 0, 11016, 11017, 19782, 2932896])
def test_dates_agree_with_the_calendar(days: int) -> None:
    from datetime import date, timedelta

    try:
        wanted = (date(1970, 1, 1) + timedelta(days)).isoformat()
    except OverflowError:
        wanted = {-719528: "0001-01-01 BC", -719469: "0001-02-29 BC"}[days]
    assert date_text(days) == wanted
    assert timestamp_text(days * 86_400_000_000).startswith(wanted.removesuffix(" BC"))


# --- relations and old rows ----------------------------------------------------------------------


class Catalogue(EmptyCatalogue):
    """A catalogue with the table public.t (id, v), identity as given."""

    def __init__(self, identity: str = "d") -> None:
        key = identity == "f"
        self.table = Relation(
            oid=5,
            schema="public",
            table="t",
            identity=identity,
            columns=(
                Column(name="id", type_oid=23, in_identity=True),
                Column(name="v", type_oid=1043, typmod=14, in_identity=key),
            ),
        )

    def relation(self, schema: str, table: str) -> Relation | None:
        return self.table


ID, OLD_ID = wire.datum("id", 23, wire.int32(2)), wire.datum("id", 23, wire.int32(1))
V, NO_V = wire.datum("v", 1043, wire.text("x")), wire.datum("v", 1043)
INFO = [wire.type_info("integer"), wire.type_info("character varying(10)")]
UPDATE = wire.message(wire.UPDATE, table=wire.TABLE, new=[ID, V], old=[OLD_ID, NO_V], info=INFO)
DELETE = wire.message(wire.DELETE, table=wire.TABLE, old=[OLD_ID, NO_V])


def test_old_rows_of_an_unknown_table_have_what_they_show() -> None:
    (row,) = feed(DELETE)
    assert (row.old, row.old_kind) == (("1", ABSENT), OldTuple.KEY)


def test_rows_without_identity_are_counted_or_told_as_unknown() -> None:
    nothing = Catalogue("n")
    update = wire.message(wire.UPDATE, table=wire.TABLE)
    delete = wire.message(wire.DELETE, table=wire.TABLE)
    skipped, deleted = feed(update, delete, catalogue=nothing)
    assert isinstance(skipped, Skipped)
    assert isinstance(deleted, Delete)
    assert (deleted.old, deleted.old_kind) == ((), OldTuple.NONE)


def test_typmods_come_from_the_row_and_relations_stay_the_same() -> None:
    insert = wire.insert(ID, V, info=INFO)
    rows = feed(insert, UPDATE, DELETE, insert, catalogue=Catalogue())
    assert len({id(row.relation) for row in rows}) == 1
    assert [column.typmod for column in rows[0].relation.columns] == [-1, 14]
    wider = wire.insert(ID, V, info=[INFO[0], wire.type_info("character varying(20)")])
    assert feed(insert, wider, catalogue=Catalogue())[1].relation.columns[1].typmod == 24


@pytest.mark.parametrize(
    ("oid", "modifier", "typmod"),
    [
        (1700, "numeric(10,2)", 655366),
        (1700, "numeric", -1),
        (1700, "numeric(5,-2)", -1),
        (1042, "character(5)", 9),
        (1114, "timestamp(3) without time zone", 3),
        (1560, "bit(4)", 4),
        (25, "text", -1),
    ],
)
def test_typmods_are_read_from_the_type_s_text(oid: int, modifier: str, typmod: int) -> None:
    (row,) = feed(wire.insert(wire.datum("c", oid), info=[wire.type_info(modifier)]))
    assert row.relation.columns[0].typmod == typmod


@pytest.mark.parametrize(
    ("written", "schema", "table"),
    [
        ("public.t", "public", "t"),
        ('"Odd Schema"."Odd ""T.a,b"', "Odd Schema", 'Odd "T.a,b'),
        ('public."order"', "public", "order"),
        ('"a.b".c', "a.b", "c"),
    ],
)
def test_table_names_are_unquoted(written: str, schema: str, table: str) -> None:
    (row,) = feed(wire.insert(wire.datum('"q""uote"', 23), table=written))
    assert (row.relation.schema, row.relation.table) == (schema, table)
    assert row.relation.columns[0].name == 'q"uote'


def test_positions_come_from_the_frames() -> None:
    decoder = decoderbufs(catalogue=EmptyCatalogue())
    begin, commit = decoder.feed([(10, wire.begin()), (30, wire.commit())])
    assert (begin.lsn, begin.commit_lsn, begin.commit_ts, begin.xid) == (10, 0, 5, 7)
    assert (commit.end_lsn, commit.commit_ts) == (30, 5)
