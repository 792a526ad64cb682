"""pgoutput against an encoder written from the manual: rows come back, damage never does."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from waltap.decode import ABSENT, UNCHANGED, Delete, Insert, Message, RelationSeen, Update
from waltap.errors import DecodeError

from tests.harness import pgoutput_wire as wire
from tests.harness.captures import READERS, pgoutput, sessions

OID = 0x0102_FFFE
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=300)
TEXT_CELLS = st.one_of(TEXT, st.none(), st.just(UNCHANGED))
# Widths that the reader expects of int4, int8, uuid and others, and some that it does not.
TYPES = st.sampled_from([16, 20, 21, 23, 25, 1700, 1114, 2950])
BYTES = st.one_of(
    st.binary(max_size=20), *(st.binary(min_size=n, max_size=n) for n in (1, 4, 8, 16))
)
BINARY_CELLS = st.one_of(BYTES, st.none(), st.just(UNCHANGED), TEXT)


@st.composite
def tables(draw, cells):
    """Return (columns, two rows) of one table; the first, which may be new, has what identifies it."""
    count = draw(st.integers(0, 14))
    columns = [(f"c{i}", draw(TYPES), -1, draw(st.booleans())) for i in range(count)]
    one, two = (draw(st.lists(cells, min_size=count, max_size=count)) for _ in range(2))
    known = zip(one, columns, strict=True)
    return columns, ["" if c is UNCHANGED and key else c for c, (*_, key) in known], two


def feed(payloads: list[bytes], *, binary: bool = False) -> list[Message]:
    decoder = pgoutput(version=160000, pgoutput__binary=binary)
    messages = decoder.feed([(n + 1, payload) for n, payload in enumerate(payloads)])
    return [message for message in messages[1:] if not isinstance(message, RelationSeen)]


def key_only(columns, row):
    return tuple(
        ABSENT if value is None and not key else value
        for (_, _, _, key), value in zip(columns, row, strict=True)
    )


@given(tables(TEXT_CELLS) | tables(BINARY_CELLS))
def test_rows_come_back_as_they_were_sent(table) -> None:
    columns, one, two = table
    binary = any(isinstance(value, bytes) for value in [*one, *two])
    relation = wire.relation(OID, "s", "t", columns)
    payloads = [
        wire.insert(OID, one),
        wire.update(OID, one),
        wire.update(OID, one, two, b"O"),
        wire.update(OID, one, two, b"K"),
        wire.delete(OID, two, b"O"),
        wire.delete(OID, two, b"K"),
    ]
    new, old, key = tuple(one), tuple(two), key_only(columns, two)
    wanted = [(new, ()), (new, ()), (new, old), (new, key), ((), old), ((), key)]
    # Twice: the first of a kind is read with care, those after it by the compiled reader.
    messages = feed([wire.begin(9), relation, *payloads, *payloads], binary=binary)
    assert [(getattr(m, "new", ()), getattr(m, "old", ())) for m in messages] == wanted * 2
    assert [type(m) for m in messages[:6]] == [Insert, Update, Update, Update, Delete, Delete]


@given(tables(TEXT_CELLS), st.integers(1, 2**32 - 1))
def test_rows_inside_a_segment_carry_their_subtransaction(table, xid) -> None:
    columns, one, two = table
    decoder = pgoutput(version=160000, pgoutput__streaming="on")
    payloads = [
        wire.stream_start(7, first=True),
        wire.relation(OID, "s", "t", columns, xid=xid),
        *[wire.insert(OID, one, xid=xid), wire.update(OID, one, two, b"O", xid=xid)] * 2,
        wire.stream_stop(),
    ]
    rows = decoder.feed([(1, payload) for payload in payloads])[2:-1]
    assert [row.xid for row in rows] == [xid] * 4
    assert [row.new for row in rows] == [tuple(one)] * 4


@given(tables(TEXT_CELLS | BYTES), st.data())
def test_a_cut_row_is_an_error_never_a_wrong_row(table, data) -> None:
    columns, one, two = table
    payload = data.draw(
        st.sampled_from(
            [
                wire.insert(OID, one),
                wire.update(OID, one, two, b"K"),
                wire.delete(OID, two, b"O"),
            ]
        )
    )
    kept = data.draw(st.integers(0, len(payload) - 1))
    start = [wire.begin(9), wire.relation(OID, "s", "t", columns)]
    again = [payload] if data.draw(st.booleans()) else []
    with pytest.raises(DecodeError):
        feed([*start, *again, payload[:kept]], binary=True)


@given(tables(TEXT_CELLS), st.data())
def test_a_changed_byte_gives_an_error_or_a_row_of_the_table_s_width(table, data) -> None:
    columns, one, _ = table
    payload = bytearray(wire.insert(OID, one))
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at] = data.draw(st.integers(0, 255))
    start = [wire.begin(9), wire.relation(OID, "s", "t", columns), wire.insert(OID, one)]
    try:
        (_, message) = feed([*start, bytes(payload)])
    except DecodeError:
        return
    assert len(message.new) == len(columns)
    assert not any(isinstance(value, str) and "\0" in value for value in message.new)


NAMES = st.text(
    st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=20
)
COLUMNS = st.lists(
    st.tuples(NAMES, st.integers(1, 2**32 - 1), st.integers(-1, 2**31 - 1), st.booleans()),
    unique_by=lambda column: column[0],
    max_size=8,
)


@given(st.integers(0, 2**32 - 1), NAMES, NAMES, COLUMNS, st.sampled_from("dnfi"))
def test_relations_come_back_as_they_were_sent(oid, schema, table, columns, identity) -> None:
    decoder = pgoutput()
    _, seen = decoder.feed(
        [(1, wire.begin(9)), (0, wire.relation(oid, schema, table, columns, identity))]
    )
    found = seen.relation
    assert (found.oid, found.schema, found.table, found.identity) == (oid, schema, table, identity)
    assert [(c.name, c.type_oid, c.typmod, c.in_identity) for c in found.columns] == columns


LSN = st.integers(1, 2**63 - 1)
XID = st.integers(0, 2**32 - 1)
TIME = st.integers(-(2**62), 2**62)


@given(LSN, LSN, XID, TIME, NAMES)
def test_prepared_transactions_come_back_as_they_were_sent(lsn, size, xid, time, gid) -> None:
    end = lsn + size
    begin, prepare, commit, rollback = pgoutput().feed(
        [
            (1, wire.begin_prepare(lsn, end, xid, gid, time)),
            (2, wire.prepare(lsn, end, xid, gid, time)),
            (3, wire.commit_prepared(lsn, end, xid, gid, time)),
            (4, wire.rollback_prepared(lsn, end, xid, gid, time, time)),
        ]
    )
    unix = time + wire.UNIX_OF_2000
    for message in (begin, prepare):
        assert (message.prepare_lsn, message.end_lsn, message.xid) == (lsn, end, xid)
        assert (message.prepare_ts, message.gid) == (unix, gid)
    assert (commit.commit_lsn, commit.end_lsn, commit.commit_ts) == (lsn, end, unix)
    assert (rollback.prepare_end_lsn, rollback.rollback_end_lsn) == (lsn, end)
    assert (rollback.prepare_ts, rollback.rollback_ts, rollback.gid) == (unix, unix, gid)


@given(st.booleans(), NAMES, st.binary(max_size=50), LSN, XID, TIME)
def test_messages_and_truncates_come_back_as_they_were_sent(
    cascade, prefix, content, lsn, xid, time
) -> None:
    relation = wire.relation(OID, "s", "t", [])
    between, begin, origin, message, _, truncate, commit = pgoutput().feed(
        [
            (5, wire.message(prefix, content, transactional=False, lsn=lsn)),
            (6, wire.begin(lsn, time, xid)),
            (0, wire.origin(lsn, prefix)),
            (8, wire.message(prefix, content, transactional=True, lsn=lsn)),
            (0, relation),
            (9, wire.truncate([OID, OID], cascade | 2)),
            (10, wire.commit(lsn, lsn + 1, time)),
        ]
    )
    assert (between.transactional, message.transactional) == (False, True)
    assert (message.prefix, message.content) == (between.prefix, between.content)
    assert (message.prefix, message.content) == (prefix, content)
    assert (origin.name, origin.origin_lsn) == (prefix, lsn)
    assert (truncate.cascade, truncate.restart_identity) == (cascade, True)
    assert len(truncate.relations) == 2
    assert (commit.commit_lsn, commit.end_lsn, commit.xid) == (lsn, lsn + 1, xid)
    assert begin.commit_ts == commit.commit_ts == time + wire.UNIX_OF_2000


@settings(max_examples=60)
@given(st.data())
def test_any_grouping_of_frames_gives_the_same_messages(data) -> None:
    name = data.draw(st.sampled_from([name for name in READERS if "pgoutput" in name]))
    scenario = data.draw(st.sampled_from(sorted(sessions(name))))
    frames = sessions(name)[scenario]
    whole = READERS[name]().feed(frames)
    decoder, found, at = READERS[name](), [], 0
    while at < len(frames):
        size = data.draw(st.integers(1, 5))
        found += decoder.feed(frames[at : at + size])
        at += size
    assume(found)
    assert [repr(message) for message in found] == [repr(message) for message in whole]
