"""pgoutput over a session: options, relations and their versions, streams, what is left out."""

import pytest
from tests.harness import pgoutput_wire as wire
from tests.harness.captures import pgoutput

from waltap.decode import UNCHANGED, Insert, RelationSeen, Skipped
from waltap.errors import ConfigurationError

OID = 16384
ID, V = ("id", 23, -1, True), ("v", 25, -1, False)
RELATION = wire.relation(OID, "public", "t", [ID, V])


def frames(*payloads: bytes) -> list[tuple[int, bytes]]:
    return list(enumerate(payloads, 1))


# --- options -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "options", "wanted"),
    [
        (100020, {}, {"proto_version": "1"}),
        (130010, {}, {"proto_version": "1"}),
        (140005, {}, {"proto_version": "2", "messages": "true"}),
        (150020, {"pgoutput__two_phase": True},
         {"proto_version": "3", "messages": "true", "two_phase": "true"}),
        (160000, {"pgoutput__streaming": "parallel", "pgoutput__origin": "none"},
         {"proto_version": "4", "messages": "true", "streaming": "parallel", "origin": "none"}),
        (180000, {"pgoutput__binary": True, "pgoutput__messages": False},
         {"proto_version": "4", "binary": "true"}),
        (160000, {"pgoutput__proto_version": 2}, {"proto_version": "2", "messages": "true"}),
        (160000, {"pgoutput__streaming": "on"},
         {"proto_version": "4", "messages": "true", "streaming": "on"}),
    ],
)  # fmt: skip
def test_the_highest_protocol_is_asked_for_and_no_option_the_server_lacks(
    version: int, options: dict[str, object], wanted: dict[str, str]
) -> None:
    decoder = pgoutput(version=version, publications=("plain", 'od"d P'), **options)
    names = '"plain","od""d P"'
    assert decoder.start_options() == wanted | {"publication_names": names}


@pytest.mark.parametrize(
    ("version", "options", "names"),
    [
        (130000, {"pgoutput__binary": True}, ["pgoutput.binary"]),
        (130000, {"pgoutput__messages": True}, ["pgoutput.messages"]),
        (150000, {"pgoutput__streaming": "parallel"}, ["pgoutput.streaming"]),
        (150000, {"pgoutput__origin": "none"}, ["pgoutput.origin"]),
        (140000, {"pgoutput__two_phase": True}, ["pgoutput.two_phase"]),
        (140000, {"pgoutput__proto_version": 3}, ["pgoutput.proto_version"]),
        (160000, {"pgoutput__proto_version": 1, "pgoutput__streaming": "on"},
         ["pgoutput.streaming"]),
        (130000, {"pgoutput__binary": True, "pgoutput__two_phase": True},
         ["pgoutput.binary", "pgoutput.two_phase"]),
    ],
)  # fmt: skip
def test_all_that_a_server_cannot_do_is_named_at_once(
    version: int, options: dict[str, object], names: list[str]
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        pgoutput(version=version, **options)
    assert [problem.property for problem in caught.value.problems] == names


def test_capabilities_tell_what_was_negotiated() -> None:
    old, new = pgoutput(version=100000), pgoutput(version=160000, pgoutput__streaming="on")
    assert (old.capabilities.truncate, old.capabilities.logical_messages) == (False, False)
    assert (new.capabilities.streaming, new.capabilities.binary) == (True, False)
    assert pgoutput(two_phase_slot=True).capabilities.two_phase


# --- relations -----------------------------------------------------------------------------------


def test_rows_follow_the_relation_in_force_when_they_arrive() -> None:
    wider = wire.relation(OID, "public", "t", [ID, V, ("w", 25, -1, False)])
    rows = [
        message
        for message in pgoutput().feed(
            frames(
                wire.begin(9),
                RELATION,
                wire.insert(OID, ["1", "a"]),
                wider,
                wire.insert(OID, ["2", "b", "c"]),
                wire.insert(OID, ["3", "b", "c"]),
                RELATION,
                wire.insert(OID, ["4", "d"]),
            )
        )
        if isinstance(message, Insert)
    ]
    assert [len(row.new) for row in rows] == [2, 3, 3, 2]
    assert [len(row.relation.columns) for row in rows] == [2, 3, 3, 2]
    assert rows[0].relation is rows[3].relation


def test_a_renamed_type_makes_a_new_version() -> None:
    relation = wire.relation(OID, "public", "t", [ID, ("m", 17000, -1, False)])
    messages = pgoutput().feed(
        frames(
            wire.begin(9),
            wire.type_(17000, "public", "mood"),
            relation,
            wire.type_(17000, "public", "temper"),
            relation,
        )
    )
    texts = [m.relation.columns[1].type_text for m in messages if isinstance(m, RelationSeen)]
    assert texts == ["public.mood", "public.temper"]


def test_namespace_left_out_is_pg_catalog() -> None:
    relation = wire.relation(OID, "", "pg_thing", [ID])
    (_, seen) = pgoutput().feed(frames(wire.begin(9), relation))
    assert seen.relation.name == "pg_catalog.pg_thing"


def test_numbers_of_relation_are_signed_and_unsigned_where_they_are() -> None:
    relation = wire.relation(0xFFFFFFFE, "s", "t", [("c", 0xF0000001, -1, False)], "f")
    (_, seen) = pgoutput().feed(frames(wire.begin(9), relation))
    column = seen.relation.columns[0]
    assert (seen.relation.oid, seen.relation.identity) == (0xFFFFFFFE, "f")
    assert (column.type_oid, column.typmod, column.in_identity) == (0xF0000001, -1, False)


def test_a_table_without_columns_has_empty_rows() -> None:
    nothing = wire.relation(OID, "s", "t", [])
    messages = pgoutput().feed(
        frames(wire.begin(9), nothing, wire.insert(OID, []), wire.insert(OID, []))
    )
    assert [m.new for m in messages if isinstance(m, Insert)] == [(), ()]


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("count", [1, 17, 300])
def test_tables_of_any_width_are_read_alike_first_and_later(count: int, binary: bool) -> None:
    columns = [(f"c{i}", 25, -1, i == 0) for i in range(count)]
    row: list[object] = [("" if i % 5 == 0 else f"v{i}é") if i % 3 else None for i in range(count)]
    messages = pgoutput(pgoutput__binary=binary).feed(
        frames(
            wire.begin(9),
            wire.relation(OID, "s", "t", columns),
            *[wire.insert(OID, row)] * 2,
            *[wire.update(OID, row, row, b"O")] * 2,
        )
    )
    assert [m.new for m in messages[2:]] == [tuple(row)] * 4
    assert [m.old for m in messages[4:]] == [tuple(row)] * 2


# --- tuples --------------------------------------------------------------------------------------


def test_binary_rows_with_null_or_odd_sizes_are_read_like_others() -> None:
    fixed = [("a", 23, -1, True), ("b", 20, -1, False), ("c", 23, -1, False), V]
    rows: list[list[object]] = [
        [b"\0\0\0\1", b"12345678", b"\0\0\0\2", b"text"],
        [b"\0\0\0\1", None, b"\0\0\0\2", None],
        [b"\0\0\0\1", b"1234", b"\0\0\0\2", b""],
        [b"\0\0\0\1", UNCHANGED, None, "as text é"],
    ]
    payloads = [wire.insert(OID, row) for row in rows]
    relation = wire.relation(OID, "s", "t", fixed)
    decoder = pgoutput(pgoutput__binary=True)
    messages = decoder.feed(frames(wire.begin(9), relation, *payloads, *payloads))
    assert [list(m.new) for m in messages[2:]] == rows * 2


# --- streams -------------------------------------------------------------------------------------


def test_relations_of_a_stream_are_its_own_until_it_commits() -> None:
    decoder = pgoutput(version=160000, pgoutput__streaming="on")
    narrow = wire.relation(OID, "public", "t", [ID], xid=7)
    messages = decoder.feed(
        frames(
            wire.begin(5),
            RELATION,
            wire.insert(OID, ["1", "a"]),
            wire.commit(5, 6),
            wire.stream_start(7, first=True),
            narrow,
            wire.insert(OID, ["2"], xid=7),
            wire.insert(OID, ["3"], xid=8),
            wire.stream_stop(),
            wire.begin(10),
            wire.insert(OID, ["4", "b"]),
            wire.commit(10, 11),
            wire.stream_commit(7, 12, 13),
            wire.begin(15),
            wire.insert(OID, ["5"]),
        )
    )
    rows = [message for message in messages if isinstance(message, Insert)]
    assert [row.new for row in rows] == [("1", "a"), ("2",), ("3",), ("4", "b"), ("5",)]
    assert [row.xid for row in rows] == [0, 7, 8, 0, 0]


def test_relations_of_an_aborted_stream_are_forgotten() -> None:
    decoder = pgoutput(version=160000, pgoutput__streaming="on")
    messages = decoder.feed(
        frames(
            wire.begin(5),
            RELATION,
            wire.commit(5, 6),
            wire.stream_start(7, first=True),
            wire.relation(OID, "public", "t", [ID], xid=7),
            wire.stream_stop(),
            wire.stream_abort(7, 7),
            wire.begin(10),
            wire.insert(OID, ["4", "b"]),
        )
    )
    assert messages[-1].new == ("4", "b")


# --- what is left out ----------------------------------------------------------------------------


def test_a_row_that_is_left_out_is_not_split() -> None:
    decoder = pgoutput(captures=lambda _schema, _table: False)
    damaged = wire.insert(OID, ["1", "a"])[:9]
    assert isinstance(decoder.feed(frames(wire.begin(9), RELATION, damaged))[-1], Skipped)


# --- yboutput ------------------------------------------------------------------------------------
