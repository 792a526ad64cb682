"""Every decoder against writers of its own wire format: what was sent comes back, and damage never does."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.harness import pgoutput_wire as wire
from tests.harness.captures import pgoutput, reported
from tests.harness.decoder_wires import WIRES, Known, frames, table

from waltap.changes.decode import (
    ABSENT,
    UNCHANGED,
    Delete,
    Insert,
    OldTuple,
    Update,
)

CHARACTERS = st.characters(exclude_characters="\0", exclude_categories=("Cs",))
TEXT = st.text(CHARACTERS, max_size=60)
NAMES = st.text(CHARACTERS, min_size=1, max_size=12)
DIGITS = st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?", fullmatch=True)
CELLS = {
    16: st.sampled_from("tf"),
    17: st.binary(max_size=20).map(lambda data: "\\x" + data.hex()),
    20: st.integers(-(2**63), 2**63 - 1).map(str),
    23: st.integers(-(2**31), 2**31 - 1).map(str),
    25: TEXT,
    1700: DIGITS.filter(lambda digits: digits != "-0"),
    70000: TEXT,
}
"""Type OID → what the server prints of its values."""


@st.composite
def histories(draw):
    """Return a table, and a transaction of every kind of change to it."""
    keyed = draw(st.booleans())
    named = draw(st.lists(NAMES, min_size=1, max_size=7, unique=True))
    oids = [draw(st.sampled_from(list(CELLS))) for _ in named]
    keys = [keyed and (n == 0 or draw(st.booleans())) for n in range(len(named))]
    made = table(zip(named, oids, keys, strict=True), "d" if keyed else "f")

    def row(*, unsent: bool = False):
        more = {25: st.none() | st.just(UNCHANGED) if unsent else st.none()}
        return tuple(
            draw(CELLS[oid] if key else CELLS[oid] | more.get(oid, st.none()))
            for oid, key in zip(oids, keys, strict=True)
        )

    def old():
        return tuple(v if key or not keyed else ABSENT for v, key in zip(row(), keys, strict=True))

    updates = [("U", row(unsent=True), ()), ("U", row(unsent=True), old())] if keyed else []
    updates += [] if keyed else [("U", row(), row())]
    return made, [("I", row()), *updates, ("D", old()), ("I", row())]


def by_key(change):
    """Return an update by a key that did not change without it: pgoutput alone may send such a one."""
    kind, *rows = change
    same = kind == "U" and all(o is ABSENT or o == n for n, o in zip(*rows, strict=False))
    return (kind, rows[0], ()) if same else change


@pytest.mark.parametrize("plugin", WIRES)
@settings(max_examples=40)
@given(histories())
def test_changes_come_back_as_they_were_sent(plugin, history):
    made, steps = history
    # twice: the first of a kind is read with care, those after it by a compiled reader
    sent = frames(plugin, made, [("B",), *steps, *steps, ("C",)])
    decoder = WIRES[plugin][0](catalogue=Known(made))
    messages = [message for frame in sent for message in decoder.feed([frame])]
    seen = by_key if made.identity == "d" else tuple
    found = [(kind, *rows) for kind, _, *rows in reported(messages)[:-1]]
    assert list(map(seen, found)) == list(map(seen, steps * 2))
    changes = [m for m in messages if isinstance(m, Insert | Update | Delete)]
    whole = OldTuple.KEY if made.identity == "d" else OldTuple.FULL
    for change in changes:
        if not isinstance(change, Insert):
            assert change.old_kind is (whole if change.old else OldTuple.NONE)
    (relation,) = {id(change.relation): change.relation for change in changes}.values()
    shapes = [[(c.name, c.in_identity) for c in each.columns] for each in (relation, made)]
    assert shapes[0] == shapes[1]
    assert relation.oid == made.oid


# --- pgoutput ------------------------------------------------------------------------------------

OID = 0x0102_FFFE
LSN = st.integers(1, 2**63 - 1)
XID = st.integers(0, 2**32 - 1)
TIME = st.integers(-(2**62), 2**62)


@given(LSN, LSN, XID, TIME, NAMES)
def test_prepared_transactions_come_back_as_they_were_sent(lsn, size, xid, time, gid):
    end, unix = lsn + size, time + wire.UNIX_OF_2000
    sent = [
        wire.begin_prepare(lsn, end, xid, gid, time),
        wire.prepare(lsn, end, xid, gid, time),
        wire.commit_prepared(lsn, end, xid, gid, time),
        wire.rollback_prepared(lsn, end, xid, gid, time, time),
    ]
    begin, prepare, commit, rollback = pgoutput().feed(list(enumerate(sent, 1)))
    for message in (begin, prepare):
        assert (message.prepare_lsn, message.end_lsn, message.xid) == (lsn, end, xid)
        assert (message.prepare_ts, message.gid) == (unix, gid)
    assert (commit.commit_lsn, commit.end_lsn, commit.commit_ts) == (lsn, end, unix)
    assert (rollback.prepare_end_lsn, rollback.rollback_end_lsn) == (lsn, end)
    assert (rollback.prepare_ts, rollback.rollback_ts, rollback.gid) == (unix, unix, gid)


@given(st.booleans(), NAMES, st.binary(max_size=50), LSN, XID, TIME)
def test_messages_and_truncates_come_back_as_they_were_sent(
    cascade, prefix, content, lsn, xid, time
):
    sent = [
        wire.message(prefix, content, transactional=False, lsn=lsn),
        wire.begin(lsn, time, xid),
        wire.origin(lsn, prefix),
        wire.message(prefix, content, transactional=True, lsn=lsn),
        wire.relation(OID, "s", "t", []),
        *[wire.delete(OID, [], b"K")] * 2,  # the second by a compiled reader
        wire.truncate([OID, OID], cascade | 2),
        wire.commit(lsn, lsn + 1, time),
    ]
    found = pgoutput().feed(list(enumerate(sent, 5)))
    between, begin, origin, message, _, *gone, truncate, commit = found
    assert [each.old for each in gone] == [(), ()]
    assert (between.transactional, message.transactional) == (False, True)
    assert {(m.prefix, m.content) for m in (message, between)} == {(prefix, content)}
    assert (origin.name, origin.origin_lsn) == (prefix, lsn)
    assert (truncate.cascade, truncate.restart_identity) == (cascade, True)
    assert len(truncate.relations) == 2
    assert (commit.commit_lsn, commit.end_lsn, commit.xid) == (lsn, lsn + 1, xid)
    assert begin.commit_ts == commit.commit_ts == time + wire.UNIX_OF_2000
