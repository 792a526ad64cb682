"""The replication stream: any cut of the bytes gives the same frames, damage is an error, LSNs survive their text."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltap.changes.transactions.position import lsn_text, parse_lsn
from waltap.errors import DecodeError
from waltap_postgres.replication.wire import (
    LARGE_BYTES,
    CopyEnded,
    CopySplitter,
    ReplicationSplitter,
)
from waltap_testing.walsender.wire import message

LSNS = st.integers(0, (1 << 64) - 1)
PAYLOADS = st.binary(min_size=1, max_size=40) | st.builds(
    lambda before, inner, after: before + inner + after,
    st.binary(max_size=3),
    st.sampled_from(
        [b"d\0\0\0\x20w", b"d\0\0\0\x1ew" + bytes(25), b"dw", b"d\xff\xff\xff\xffw" + bytes(26)]
    ),
    st.binary(max_size=40),
)
"""Some look like messages themselves."""

LARGE = st.sampled_from([LARGE_BYTES, 30, 50])
"""Bytes from which on a message is collected apart."""

FEW = st.sampled_from([1, 3, 1 << 30])
"""Frames of one buffer that become a block."""


def xlog(lsn: int, payload: bytes) -> bytes:
    return message(b"d", b"w" + struct.pack("!QQq", lsn, lsn, 5) + payload)


def keepalive(end: int, *, reply: bool) -> bytes:
    return message(b"d", b"k" + struct.pack("!QqB", end, 7, reply))


STARTED = message(b"W", b"\0\0\0")
EVENTS = st.lists(
    st.tuples(st.just("w"), LSNS, PAYLOADS)
    | st.tuples(st.just("k"), LSNS, st.booleans())
    | st.tuples(st.just("n"), st.just(0), st.sampled_from([b"N", b"S", b"A"])),
    max_size=20,
)


def encoded(events: list[tuple[str, int, object]]) -> bytes:
    out = STARTED
    for kind, lsn, more in events:
        if kind == "w":
            out += xlog(lsn, more)  # type: ignore[arg-type]
        elif kind == "k":
            out += keepalive(lsn, reply=bool(more))
        else:
            out += message(more, b"SNOTICE\0\0")  # type: ignore[arg-type]
    return out


@given(LSNS)
def test_an_lsn_is_read_back_from_its_text_padded_or_not(lsn):
    assert parse_lsn(lsn_text(lsn)) == lsn
    assert parse_lsn(f" {lsn >> 32:08x}/{lsn & 0xFFFFFFFF:08X}\n") == lsn


@pytest.mark.parametrize(
    "text", ["", "1", "/1", "G/0", "1/123456789", "1/2/3", "-1/0", "1_0/0", "\u0661/0"]
)
def test_what_is_no_lsn_is_refused(text):
    with pytest.raises(ValueError, match=r"."):
        parse_lsn(text)


def cut(data: bytes, cuts: list[int]) -> list[bytes]:
    borders = [0, *sorted(c % (len(data) + 1) for c in cuts), len(data)]
    return [data[a:b] for a, b in zip(borders, borders[1:], strict=False) if a < b]


@given(EVENTS, st.lists(st.integers(0, 3000), max_size=10), LARGE, FEW)
def test_frames_and_keepalives_are_the_same_however_the_bytes_arrive(events, cuts, large, few):
    splitter = ReplicationSplitter(large_bytes=large, together=few)
    frames = [f for piece in cut(encoded(events), cuts) for f in splitter.split(piece)]
    assert frames == [(lsn, payload) for kind, lsn, payload in events if kind == "w"]
    assert all(type(payload) is bytes for _, payload in frames)
    reported = [(lsn, more) for kind, lsn, more in events if kind == "k"]
    assert splitter.started
    assert splitter.wal_end == (reported[-1][0] if reported else 0)
    assert splitter.reply_requested == any(more for _, more in reported)


@given(EVENTS, st.lists(st.integers(0, 3000), max_size=4))
def test_libpq_gives_the_same_payload_by_payload(events, cuts):
    whole, single = ReplicationSplitter(), ReplicationSplitter()
    frames = [f for piece in cut(encoded(events), cuts) for f in whole.split(piece)]
    alone: list[tuple[int, bytes]] = []
    for kind, lsn, more in events:
        if kind != "n":
            made = xlog(lsn, more) if kind == "w" else keepalive(lsn, reply=bool(more))  # type: ignore[arg-type]
            single.data(made[5:], alone)
    assert alone == frames
    assert (single.wal_end, single.reply_requested) == (whole.wal_end, whole.reply_requested)


@given(EVENTS.filter(bool), st.data())
def test_a_flipped_byte_never_gives_anything_but_frames_or_an_error(events, draw):
    data = bytearray(encoded(events))
    data[draw.draw(st.integers(0, len(data) - 1))] ^= draw.draw(st.integers(1, 255))
    try:
        frames = ReplicationSplitter().split(bytes(data))
    except (DecodeError, CopyEnded):
        with pytest.raises((DecodeError, CopyEnded)):
            ReplicationSplitter(together=1).split(bytes(data))
        return
    assert all(isinstance(payload, bytes) and payload for _, payload in frames)
    assert list(ReplicationSplitter(together=1).split(bytes(data))) == frames


def test_an_absurd_length_is_refused_before_it_is_waited_for():
    with pytest.raises(DecodeError, match="a message length of 4 bytes to 1 GB, found 2147483651"):
        ReplicationSplitter().split(b"d" + struct.pack("!I", (1 << 31) + 3) + b"w")


@given(
    st.lists(st.binary(max_size=60), max_size=5), st.lists(st.integers(0, 500), max_size=6), LARGE
)
def test_an_error_after_rows_of_a_copy_is_not_missed(chunks, cuts, large):
    data = b"".join(message(b"d", c) for c in chunks)
    data += message(b"E", b"C22012\0Mdivision by zero\0\0") + message(b"Z", b"I")
    splitter = CopySplitter(large_bytes=large)
    with pytest.raises(CopyEnded) as caught:
        for piece in cut(data, cuts):
            splitter.split(piece)
    assert caught.value.fields["C"] == "22012"
