"""wal2json: values back to PostgreSQL's text, and relations where nothing announces them."""

import msgspec
import pytest
from tests.harness.captures import EmptyCatalogue, wal2json

from waltap.decode import (
    ABSENT,
    UNCHANGED,
    Column,
    DataType,
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
from waltap_decoders.wal2json import Wal2Json


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


def feed(decoder: Wal2Json, *texts: str) -> list[Message]:
    messages = decoder.feed([(1, action("B").encode()), *((2, text.encode()) for text in texts)])
    return [m for m in messages[1:] if not isinstance(m, RelationSeen)]


@pytest.mark.parametrize(
    ("oid", "json", "text"),
    [
        (23, "-2147483648", "-2147483648"),
        (20, "9223372036854775807", "9223372036854775807"),
        (26, "4294967295", "4294967295"),
        (1700, "123456789012345678901234567890.12345678901234567890",
         "123456789012345678901234567890.12345678901234567890"),
        (1700, "1.500", "1.500"),
        (1700, "9" * 5000, "9" * 5000),
        (1700, "0.000", "0.000"),
        (701, "-0", "-0"),
        (701, "1e+21", "1e+21"),
        (701, "5e-324", "5e-324"),
        (700, "3.4028235e+38", "3.4028235e+38"),
        (16, "true", "t"),
        (16, "false", "f"),
        (17, '"deadbeef00"', "\\xdeadbeef00"),
        (17, '""', "\\x"),
        (25, '""', ""),
        (25, r'"a\"b\\c\b\f\n\r\tA\u0001é😀"', 'a"b\\c\b\f\n\r\tA\x01é😀'),
        (25, '"x\\":y"', 'x":y'),
        (114, '"{\\"a\\" : 1}"', '{"a" : 1}'),
        (70000, '"7"', "7"),
        (1114, '"infinity"', "infinity"),
    ],
)  # fmt: skip
def test_values_come_back_as_the_server_prints_them(oid: int, json: str, text: str) -> None:
    (row,) = feed(wal2json(catalogue=EmptyCatalogue()), action("I", {"c": (oid, json)}))
    assert row.new == (text,)


def test_special_numbers_are_told_apart_when_numbers_come_as_strings() -> None:
    decoder = wal2json(
        catalogue=EmptyCatalogue(), **{"wal2json__numeric_OF_data_OF_types_OF_as_OF_string": True}
    )
    columns = {
        "a": (701, '"NaN"'),
        "b": (1700, '"-Infinity"'),
        "c": (23, '"-5"'),
        "d": (700, "null"),
    }
    (row,) = feed(decoder, action("I", columns))
    assert row.new == ("NaN", "-Infinity", "-5", None)
    assert decoder.capabilities.special_numbers


def test_type_oids_are_printed_signed() -> None:
    decoder = wal2json(catalogue=EmptyCatalogue())
    (row,) = feed(decoder, action("I", {"c": (-16, '"x"')}))
    assert row.relation.columns[0].type_oid == 4294967280


# --- relations -----------------------------------------------------------------------------------

TEXT = DataType(oid=25, schema="pg_catalog", name="text")
MOOD = DataType(oid=90000, schema="public", name="mood", kind=TypeKind.ENUM)
ID = Column(name="id", type_oid=23, in_identity=True)
V = Column(name="v", type_oid=25, data_type=TEXT)
W = Column(name="w", type_oid=25, data_type=TEXT)
N = Column(name="n", type_oid=23)
M = Column(name="m", type_oid=90000, data_type=MOOD)
ONE, TEN, X = (23, "1"), (23, "10"), (25, '"x"')


class Catalogue(EmptyCatalogue):
    """A catalogue with one table, which may be changed as by ALTER TABLE."""

    def __init__(self, *columns: Column, identity: str = "d") -> None:
        self.asked = 0
        self.alter(*columns, identity=identity)

    def alter(self, *columns: Column, identity: str = "d") -> None:
        self.now = Relation(oid=5, schema="public", table="t", columns=columns, identity=identity)

    def relation(self, schema: str, table: str) -> Relation | None:
        self.asked += 1
        return self.now if table == "t" else None


def test_a_toasted_value_left_out_is_unchanged() -> None:
    decoder = wal2json(catalogue=Catalogue(ID, V, N))
    (row,) = feed(decoder, action("U", {"id": ONE, "n": TEN}, identity={"id": ONE}))
    assert row.new == ("1", UNCHANGED, "10")
    assert (row.relation.oid, row.relation.columns[0].in_identity) == (5, True)


def test_the_catalogue_is_asked_once_per_make_up_of_rows() -> None:
    catalogue = Catalogue(ID, V)
    full = action("I", {"id": ONE, "v": X})
    part = action("U", {"id": ONE}, identity={"id": ONE})
    rows = feed(wal2json(catalogue=catalogue), *[full, part] * 20)
    assert len({id(row.relation) for row in rows}) == 1
    assert catalogue.asked == 2


def test_rows_say_more_than_a_catalogue_that_is_ahead() -> None:
    catalogue = Catalogue(ID, V, W)
    decoder = wal2json(catalogue=catalogue)
    rows = feed(
        decoder,
        action("I", {"id": ONE, "v": X}),
        action("U", {"id": ONE, "v": X}, identity={"id": ONE}),
        action("I", {"id": ONE, "v": X, "w": X}),
        action("U", {"id": ONE, "v": X}, identity={"id": ONE}),
    )
    assert [len(row.new) for row in rows[:3]] == [2, 2, 3]


@pytest.mark.parametrize("lacking", [N, M], ids=["integer", "enum"])
def test_a_value_that_cannot_be_toasted_is_never_unchanged(lacking: Column) -> None:
    decoder = wal2json(catalogue=Catalogue(ID, V, lacking))
    (row,) = feed(decoder, action("U", {"id": ONE, "v": X}, identity={"id": ONE}))
    assert row.new == ("1", "x")


def test_a_dropped_column_is_not_unchanged() -> None:
    catalogue = Catalogue(ID, V, W)
    decoder = wal2json(catalogue=catalogue)
    feed(decoder, action("I", {"id": ONE, "v": X, "w": X}))
    catalogue.alter(ID, V)
    update = action("U", {"id": ONE, "v": X}, identity={"id": ONE})
    alter_table = [action("B"), action("C")]  # a transaction without rows
    texts = [update, action("C"), *alter_table, action("B"), update]
    messages = decoder.feed([(3, text.encode()) for text in texts])
    before, after = [m for m in messages if isinstance(m, Update)]
    assert before.new == ("1", "x", UNCHANGED)
    assert after.new == ("1", "x")


def test_rows_from_before_a_change_to_full_identity_have_keys() -> None:
    decoder = wal2json(catalogue=Catalogue(ID, V, identity="f"))
    (row,) = feed(decoder, action("D", identity={"id": ONE}))
    assert (row.old, row.old_kind) == (("1", ABSENT), OldTuple.KEY)


def test_a_table_nobody_knows_is_what_its_rows_are() -> None:
    decoder = wal2json(catalogue=EmptyCatalogue())
    insert, delete, truncate = feed(
        decoder, action("I", {"id": ONE, "v": X}), action("D", identity={"id": ONE}), action("T")
    )
    assert isinstance(insert, Insert)
    assert insert.relation.oid == 0
    assert delete.old == ("1", ABSENT)
    assert isinstance(truncate, Truncate)
    assert truncate.relations == (delete.relation,)


# --- options -------------------------------------------------------------------------------------


def test_options_avoid_what_breaks_the_json() -> None:
    options = wal2json().start_options()
    assert options["format-version"] == "2"
    assert (options["include-types"], options["include-type-oids"]) == ("false", "true")
    assert "include-default" not in options


def test_chunks_are_asked_for_with_format_1() -> None:
    assert wal2json("1", chunks=True).start_options()["write-in-chunks"] == "true"
    assert "write-in-chunks" not in wal2json("2", chunks=True).start_options()
    assert not wal2json("1").capabilities.truncate


def test_a_truncate_of_a_table_that_is_not_captured_is_counted_with_its_rows() -> None:
    decoder = wal2json(catalogue=Catalogue(ID), captures=lambda _schema, _table: False)
    (skipped,) = feed(decoder, action("I", {"id": ONE}), action("T"), action("I", {"id": TEN}))
    assert isinstance(skipped, Skipped)
    assert skipped.count == 3
