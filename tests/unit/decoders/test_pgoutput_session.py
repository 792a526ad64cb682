"""pgoutput over a session: options, relations and their versions, streams, what is left out."""

from dataclasses import replace

import msgspec
import pytest
from tests.harness import pgoutput_wire as wire
from tests.harness.captures import context, pgoutput, yboutput

from waltap.changes.decode import Insert, Relation, RelationSeen, Skipped
from waltap.errors import ConfigurationError, DecodeError
from waltap_decoders.yboutput import YbOutput

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
        (180000, {"pgoutput__messages": False}, {"proto_version": "4"}),
        (160000, {"pgoutput__proto_version": 2}, {"proto_version": "2", "messages": "true"}),
        (160000, {"pgoutput__streaming": "on"},
         {"proto_version": "4", "messages": "true", "streaming": "on"}),
    ],
)  # fmt: skip
def test_the_highest_protocol_is_asked_for_and_no_option_the_server_lacks(version, options, wanted):
    decoder = pgoutput(version=version, publications=("plain", 'od"d P'), **options)
    names = '"plain","od""d P"'
    assert decoder.start_options() == wanted | {"publication_names": names}


@pytest.mark.parametrize(
    ("version", "options", "names"),
    [
        (130000, {"pgoutput__messages": True}, ["pgoutput.messages"]),
        (150000, {"pgoutput__streaming": "parallel"}, ["pgoutput.streaming"]),
        (150000, {"pgoutput__origin": "none"}, ["pgoutput.origin"]),
        (140000, {"pgoutput__two_phase": True}, ["pgoutput.two_phase"]),
        (140000, {"pgoutput__proto_version": 3}, ["pgoutput.proto_version"]),
        (160000, {"pgoutput__proto_version": 1, "pgoutput__streaming": "on"},
         ["pgoutput.streaming"]),
        (130000, {"pgoutput__messages": True, "pgoutput__two_phase": True},
         ["pgoutput.two_phase", "pgoutput.messages"]),
    ],
)  # fmt: skip
def test_all_that_a_server_cannot_do_is_named_at_once(version, options, names):
    with pytest.raises(ConfigurationError) as caught:
        pgoutput(version=version, **options)
    assert [problem.property for problem in caught.value.problems] == names


def test_capabilities_show_what_was_negotiated():
    old, new = pgoutput(version=100000), pgoutput(version=160000, pgoutput__streaming="on")
    assert (old.capabilities.truncate, old.capabilities.logical_messages) == (False, False)
    assert (old.capabilities.streaming, new.capabilities.streaming) == (False, True)
    assert pgoutput(two_phase_slot=True).capabilities.two_phase


# --- relations -----------------------------------------------------------------------------------


def test_a_renamed_type_makes_a_new_version():
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


def test_namespace_left_out_is_pg_catalog():
    relation = wire.relation(OID, "", "pg_thing", [ID])
    (_, seen) = pgoutput().feed(frames(wire.begin(9), relation))
    assert seen.relation.name == "pg_catalog.pg_thing"


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("old", [None, ["2", None]])
def test_an_update_to_null_in_the_key_is_refused(old, *, first):
    known = [] if first else [wire.update(OID, ["1", "a"], old)] * 2
    decoder = pgoutput()
    with pytest.raises(DecodeError, match=r"column 1 \(id\), which identifies the new row"):
        decoder.feed(frames(wire.begin(9), RELATION, *known, wire.update(OID, [None, "a"], old)))


# --- streams -------------------------------------------------------------------------------------


def test_relations_of_a_stream_are_its_own_until_it_commits():
    """Those of one that is aborted are forgotten."""
    decoder = pgoutput(version=160000, pgoutput__streaming="on")
    narrow = wire.relation(OID, "public", "t", [ID], xid=7)
    messages = decoder.feed(
        frames(
            *[wire.begin(5), RELATION, wire.insert(OID, ["1", "a"]), wire.commit(5, 6)],
            *[
                wire.stream_start(9, first=True),
                narrow,
                wire.stream_stop(),
                wire.stream_abort(9, 9),
            ],
            *[wire.stream_start(7, first=True), narrow],
            *[wire.insert(OID, ["2"], xid=7), wire.insert(OID, ["3"], xid=8), wire.stream_stop()],
            *[wire.begin(10), wire.insert(OID, ["4", "b"]), wire.commit(10, 11)],
            *[wire.stream_commit(7, 12, 13), wire.begin(15), wire.insert(OID, ["5"])],
        )
    )
    rows = [message for message in messages if isinstance(message, Insert)]
    assert [row.new for row in rows] == [("1", "a"), ("2",), ("3",), ("4", "b"), ("5",)]
    assert [row.xid for row in rows] == [0, 7, 8, 0, 0]


def test_an_abort_below_a_transaction_that_was_not_streamed_is_nothing():
    decoder = pgoutput(version=180000, pgoutput__streaming="on")
    assert list(decoder.feed(frames(wire.stream_abort(7, 8)))) == []
    with pytest.raises(DecodeError, match="the xid of an open stream, found 7"):
        decoder.feed(frames(wire.stream_abort(7, 7)))


def test_a_row_that_is_left_out_is_not_split():
    decoder = pgoutput(captures=lambda _schema, _table: False)
    damaged = wire.insert(OID, ["1", "a"])[:9]
    assert isinstance(decoder.feed(frames(wire.begin(9), RELATION, damaged))[-1], Skipped)


# --- yboutput, which adds an identity ------------------------------------------------------------


def test_protocol_1_is_asked_for_and_nothing_else():
    options = yboutput(version=150008).start_options()
    assert options == {"proto_version": "1", "publication_names": '"p"'}


COLUMNS = (("id", 23, -1, True), ("code", 23, -1, False), ("note", 25, -1, False))


def described(relation: Relation) -> Relation:
    """Play a catalogue in which every column is NOT NULL DEFAULT 1 and the key is (id, code)."""
    columns = tuple(
        msgspec.structs.replace(column, nullable=False, default="1") for column in relation.columns
    )
    return msgspec.structs.replace(relation, columns=columns, primary_key=("id", "code"))


@pytest.mark.parametrize(
    ("letter", "describe", "nullable"),
    [
        pytest.param("c", described, [False, False, True], id="change"),
        pytest.param("d", described, [False, False, False], id="default"),
        pytest.param("f", described, [False, False, False], id="full"),
        pytest.param("c", None, [None, None, None], id="nobody who describes"),
    ],
)
def test_columns_that_may_be_unsent_are_nullable_without_default(letter, describe, nullable):
    """A column of the key never is, whether flagged on the wire or known from the catalogue."""
    frames = [wire.begin(100), wire.relation(1, "public", "t", COLUMNS, letter)]
    _, seen = YbOutput(replace(context(), describe=describe)).feed([(10, f) for f in frames])
    columns = seen.relation.columns
    assert [column.nullable for column in columns] == nullable
    assert [column.default is None for column in columns] == [n is not False for n in nullable]
