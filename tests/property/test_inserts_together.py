"""Inserts that are split together give what single ones give, errors included."""

import struct
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import event, given
from hypothesis import strategies as st
from tests.harness import pgoutput_wire as wire
from tests.harness.captures import context

from waltap.changes.decode import (
    UNCHANGED,
    Frame,
    InsertBlock,
    Message,
    StreamStart,
    StreamStop,
    TransactionBlock,
    singly,
)
from waltap.errors import DecodeError
from waltap_decoders.pgoutput import PgOutput

OIDS = (0x0102_FFFE, 7)
TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=20)
LONG = st.integers(200, 70_000).map("x".__mul__)


class Together(PgOutput):
    """A decoder that reads even two inserts together."""

    least_together = least_in_segment = 2


class Singly(PgOutput):
    """A decoder that reads every row by itself."""

    least_together = least_in_segment = 1 << 30


@st.composite
def columns_of_tables(draw):
    count = draw(st.integers(0, 8))
    return [(f"c{i}", 25, -1, draw(st.booleans())) for i in range(count)]


@st.composite
def rows(draw, columns, *, sound: bool = False):
    """Return the cells of an insert; rarely ones that no insert has, unless ``sound``."""
    cells = []
    for *_, key in columns:
        cell = TEXT if key else TEXT | st.none()
        odd = draw(st.integers(0, 40)) == 0 and not sound
        other = st.none() | st.just(UNCHANGED) | st.just("a\0b") | LONG
        cells.append(draw(other if odd else cell))
    return cells


def damaged(draw, payload: bytes) -> bytes:
    """Return ``payload`` with a fault, or perhaps another valid one."""
    at = draw(st.integers(0, len(payload) - 1))
    return draw(
        st.sampled_from(
            [
                payload[:at],
                payload + b"n",
                payload[:at] + bytes([draw(st.integers(0, 255))]) + payload[at + 1 :],
                payload[:at] + struct.pack("!i", draw(st.integers(-9, 2**31 - 1))) + payload[at:],
                payload[:at] + payload[at + 1 :],
            ]
        )
    )


@st.composite
def streamed(draw, tables, identities) -> list[bytes]:
    """Return the payloads of transactions that come in segments."""
    payloads: list[bytes] = []
    known: set[tuple[int, int]] = set()
    for _ in range(draw(st.integers(0, 9))):
        xid = draw(st.sampled_from([50, 50, 50, 60]))
        first = xid not in {xid for xid, _ in known}
        payloads.append(wire.stream_start(xid, first=first))
        known.add((xid, 0))
        for _ in range(draw(st.integers(1, 2))):
            which = draw(st.sampled_from([0, 0, 0, 1]))
            oid, columns = OIDS[which], tables[which]
            sub = xid + draw(st.sampled_from([0, 0, 0, 1]))
            if (xid, oid) not in known or draw(st.integers(0, 9)) == 0:
                known.add((xid, oid))
                relation = wire.relation(oid, "s", f"t{oid}", columns, identities[which], xid=sub)
                payloads.append(relation)
            inserts = draw(st.lists(rows(columns), max_size=4))
            payloads += [wire.insert(oid, cells, sub) for cells in inserts]
        payloads.append(wire.stream_stop())
    if (50, 0) in known:
        payloads.append(wire.stream_commit(50, 900, 901))
    return payloads


@st.composite
def histories(draw) -> list[Frame]:
    """Return the frames of transactions of mostly inserts, some of them damaged."""
    tables = [draw(columns_of_tables()) for _ in OIDS]
    identities = [draw(st.sampled_from("dfni")) for _ in OIDS]
    payloads: list[bytes] = []
    for lsn in range(100, 100 + draw(st.integers(1, 3))):
        payloads.append(wire.begin(lsn))
        for oid, columns, identity in zip(OIDS, tables, identities, strict=True):
            if lsn == 100 or draw(st.integers(0, 4)) == 0:
                payloads.append(wire.relation(oid, "s", f"t{oid}", columns, identity))
        for _ in range(draw(st.integers(0, 4))):
            which = draw(st.integers(0, 1))
            oid, columns = OIDS[which], tables[which]
            inserts = draw(st.lists(rows(columns), min_size=1, max_size=7))
            payloads += [wire.insert(oid, cells) for cells in inserts]
            if draw(st.booleans()):
                payloads.append(wire.update(oid, draw(rows(columns, sound=True))))
        payloads.append(wire.commit(lsn, lsn + 1))
    for lsn in range(200, 200 + draw(st.integers(0, 9))):
        which = draw(st.sampled_from([0, 0, 0, 1]))
        inserts = draw(
            st.lists(rows(tables[which]), min_size=1, max_size=draw(st.sampled_from([1, 1, 2])))
        )
        payloads.append(wire.begin(lsn, 7, lsn - 100))
        payloads += [wire.insert(OIDS[which], cells) for cells in inserts]
        payloads.append(wire.commit(lsn, lsn + draw(st.integers(0, 1)), 7))
    payloads += draw(streamed(tables, identities))
    if draw(st.integers(0, 2)) == 0:
        at = draw(st.integers(1, len(payloads) - 1))
        payloads[at] = damaged(draw, payloads[at])
    return [(number * 8, payload) for number, payload in enumerate(payloads, 1)]


def outcome(decoder: PgOutput, groups: Sequence[Sequence[Frame]]) -> list[Message | str]:
    """Return the messages of ``groups``, and the error that ends them."""
    found: list[Message | str] = []
    for frames in groups:
        try:
            found += decoder.feed(frames)
        except DecodeError as error:
            return [*found, str(error)]
    return found


def changes(found: list[Message | str]) -> list[str]:
    """Return ``found`` singly, without ends of segments that another one of the xid follows."""
    texts: list[str] = []
    for each in singly(found):
        later = isinstance(each, StreamStart) and not each.first
        if later and texts and texts[-1] == f"stop of {each.xid}":
            texts.pop()
            continue
        if isinstance(each, StreamStart):
            xid = each.xid
        texts.append(f"stop of {xid}" if isinstance(each, StreamStop) else str(each))
    return texts


@given(histories(), st.data())
def test_frames_mean_the_same_together(frames, data):
    cuts = data.draw(st.sets(st.integers(1, len(frames) - 1), max_size=4))
    bounds = [0, *sorted(cuts), len(frames)]
    groups = [frames[start:end] for start, end in pairwise(bounds)]
    found = outcome(Together(context(pgoutput__streaming="on")), groups)
    for kind in (InsertBlock, TransactionBlock):
        event(f"{kind.__name__}: {any(isinstance(each, kind) for each in found)}")
    expected = outcome(Singly(context(pgoutput__streaming="on")), groups)
    assert changes(found) == changes(expected)


@given(st.data())
def test_sound_transactions_become_columns(data):
    columns = data.draw(columns_of_tables().filter(bool))
    cells = data.draw(st.lists(rows(columns, sound=True), min_size=3, max_size=30))
    relation = wire.relation(OIDS[0], "s", "t", columns)
    payloads = [wire.begin(9), relation, wire.commit(9, 10)]
    for at, row in enumerate(cells, 20):
        payloads += [wire.begin(at, 5, at), wire.insert(OIDS[0], row), wire.commit(at, at + 1, 5)]
    frames = list(enumerate(payloads, 100))
    *_, block = Together(context()).feed(frames)
    assert isinstance(block, TransactionBlock)
    assert [insert.new for insert in block.inserts] == [tuple(row) for row in cells[1:]]
    assert block.commit_lsns.tolist() == block.xids.tolist() == list(range(21, 20 + len(cells)))
    cut = data.draw(st.integers(0, len(block)))
    halves = [block.part(slice(0, cut)), block.part(slice(cut, None))]
    assert [str(each) for each in singly(halves)] == [str(each) for each in singly([block])]
    expected = Singly(context()).feed(frames)[-3 * len(block) :]
    assert [str(each) for each in singly([block])] == [str(each) for each in expected]
