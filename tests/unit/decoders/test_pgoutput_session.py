"""pgoutput over a session: options, relations and their versions, streams, what is left out."""

import pytest
from waltap.config.property import Declaration, declarations
from waltap.decode import ABSENT, UNCHANGED, Insert, OldTuple, RelationSeen, Skipped, Update
from waltap.errors import ConfigurationError
from waltap_decoders.pgoutput import PgOutputProperties

from tests.harness import pgoutput_wire as wire
from tests.harness.captures import pgoutput, yboutput

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


def test_every_property_is_documented() -> None:
    found: list[Declaration] = declarations(PgOutputProperties)
    assert [declared.name for declared in found if not declared.summary] == []


# --- relations -----------------------------------------------------------------------------------


def test_a_relation_announced_again_is_the_same_object() -> None:
    decoder = pgoutput()
    first, again = (
        message.relation
        for message in decoder.feed(frames(wire.begin(9), RELATION, RELATION))
        if isinstance(message, RelationSeen)
    )
    assert first is again


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


def test_key_only_old_tuples_have_no_other_columns() -> None:
    payloads = [wire.update(OID, ["2", "b"], ["1", None]), wire.delete(OID, ["2", None])] * 2
    messages = pgoutput().feed(frames(wire.begin(9), RELATION, *payloads))
    assert [m.old for m in messages[2:]] == [("1", ABSENT), ("2", ABSENT)] * 2
    assert {m.old_kind for m in messages[2:]} == {OldTuple.KEY}


def test_null_in_a_full_old_tuple_is_null() -> None:
    payloads = [wire.update(OID, ["2", UNCHANGED], ["1", None], b"O")] * 2
    payloads += [wire.delete(OID, ["1", None], b"O")] * 2
    messages = pgoutput().feed(frames(wire.begin(9), RELATION, *payloads))
    assert {m.old for m in messages[2:]} == {("1", None)}
    assert {m.old_kind for m in messages[2:]} == {OldTuple.FULL}
    assert {m.new for m in messages[2:4]} == {("2", UNCHANGED)}


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("", id="empty"),
        pytest.param("x" * 255, id="255"),
        pytest.param("x" * 256, id="256"),
        pytest.param("é" * 65536, id="long"),
        pytest.param("😀ÿ\x7f\x01", id="mixed"),
        pytest.param("t\x01n\x02u", id="marks"),
        pytest.param("Ã©", id="latin-looking"),
    ],
)
def test_text_values_are_read_whole(value: str) -> None:
    payloads = [wire.insert(OID, ["1", value]), wire.insert(OID, [value, value])] * 2
    messages = pgoutput().feed(frames(wire.begin(9), RELATION, *payloads))
    assert [m.new for m in messages[2:]] == [("1", value), (value, value)] * 2


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


def test_rows_of_tables_that_are_not_captured_are_counted_in_their_place() -> None:
    other = wire.relation(OID + 1, "public", "other", [ID])
    decoder = pgoutput(captures=lambda schema, table: table == "t")
    messages = decoder.feed(
        frames(
            wire.begin(9),
            other,
            wire.insert(OID + 1, ["1"]),
            wire.insert(OID + 1, ["2"]),
            RELATION,
            wire.insert(OID, ["1", "a"]),
            wire.delete(OID + 1, ["1"]),
            wire.update(OID, ["1", "b"]),
            wire.commit(9, 10),
        )
    )
    kinds = [type(m).__name__ for m in messages if not isinstance(m, RelationSeen)]
    assert kinds == ["Begin", "Skipped", "Insert", "Skipped", "Update", "Commit"]
    assert [m.count for m in messages if isinstance(m, Skipped)] == [2, 1]


def test_a_row_that_is_left_out_is_not_split() -> None:
    decoder = pgoutput(captures=lambda _schema, _table: False)
    damaged = wire.insert(OID, ["1", "a"])[:9]
    assert isinstance(decoder.feed(frames(wire.begin(9), RELATION, damaged))[-1], Skipped)


# --- yboutput ------------------------------------------------------------------------------------

CHANGE = wire.relation(OID, "public", "t1", [ID, V, ("c", 16, -1, False)], "c")


def test_yboutput_reads_change_identity_and_values_not_sent() -> None:
    updates = bytes.fromhex("55000040004e0003740000000131740000000178 75".replace(" ", ""))
    nulls = bytes.fromhex("55000040004e00037400000001326e740000000166")
    deletes = bytes.fromhex("44000040004b00037400000001326e6e")
    messages = yboutput().feed(frames(wire.begin(9), CHANGE, updates, nulls, deletes))
    assert messages[1].relation.identity == "c"
    assert messages[2].new == ("1", "x", UNCHANGED)
    assert messages[3].new == ("2", None, "f")
    assert messages[4].old == ("2", ABSENT, ABSENT)


@pytest.mark.parametrize("old", [[UNCHANGED] * 3, [None] * 3], ids=["CHANGE", "DEFAULT"])
def test_yboutput_leaves_out_key_tuples_of_updates_from_older_servers(old: list[object]) -> None:
    payload = wire.update(OID, ["1", "x", UNCHANGED], old)
    messages = yboutput().feed(frames(wire.begin(9), CHANGE, payload, payload))
    for message in messages[2:]:
        assert isinstance(message, Update)
        assert (message.new, message.old) == (("1", "x", UNCHANGED), ())
        assert message.old_kind is OldTuple.NONE


def test_yboutput_keeps_full_old_rows() -> None:
    full = wire.relation(OID, "public", "t1", [ID, V], "f")
    payload = wire.update(OID, ["1", "x"], ["1", None], b"O")
    messages = yboutput().feed(frames(wire.begin(9), full, payload, payload))
    assert [m.old for m in messages[2:]] == [("1", None)] * 2


def test_yboutput_asks_for_protocol_1_and_nothing_else() -> None:
    assert yboutput(version=150008).start_options() == {
        "proto_version": "1",
        "publication_names": '"p"',
    }


def test_pgoutput_does_not_know_change_identity() -> None:
    with pytest.raises(Exception, match="replica identity in d,n,f,i"):
        pgoutput().feed(frames(wire.begin(9), CHANGE))
