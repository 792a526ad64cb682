"""Malformed pgoutput: every fault is a DecodeError at its byte, with what was expected."""

import pytest
from tests.harness import pgoutput_wire as wire
from tests.harness.captures import pgoutput

from waltap.decode import Message
from waltap.errors import DecodeError

OID = 0x4499
COLUMNS = [("id", 23, -1, True), ("a", 25, -1, False), ("n", 1700, 655366, False)]
COLUMNS += [("big", 25, -1, False)]
RELATION = wire.relation(OID, "public", "t_default", COLUMNS)
BEGIN = wire.begin(100)
COMMIT = wire.commit(100, 110)
INSIDE = [BEGIN, RELATION]
UPDATE = wire.update(OID, ["20", "dos", "2.00", None], ["2", None, None, None])
LSN = 0x16_0000_0042


def feed(*payloads: bytes, **options: object) -> list[Message]:
    return pgoutput(version=160000, **options).feed([(LSN, payload) for payload in payloads])


def fault(*payloads: bytes, **options: object) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        feed(*payloads, **options)
    assert caught.value.lsn == LSN
    return caught.value


def changed(payload: bytes, at: int, new: bytes) -> bytes:
    return payload[:at] + new + payload[at + len(new) :]


i = bytes.fromhex

CASES = [
    pytest.param([], b"", 0, "a message type", "an empty payload", id="empty"),
    pytest.param([], i("5a0000"), 0, "a message type", "0x5a", id="P1-unknown-type"),
    pytest.param(
        [], i("420000000006542c10000303ae7e026b260000"), 17, "Begin: xid in 4 bytes", "2 left",
        id="P2-begin-cut",
    ),
    pytest.param(
        INSIDE, changed(COMMIT, 1, b"\1"), 1, "Commit: flags 0", "1", id="P3-commit-flags"
    ),
    pytest.param(
        INSIDE, COMMIT + b"\0", 26, "Commit: the end of the message", "1 more", id="P4-trailing"
    ),
    pytest.param(
        [BEGIN], i("520000449970") + b"ublic", 5, "Relation: namespace ended by NUL", "no NUL",
        id="P5-no-terminator",
    ),
    pytest.param(
        [BEGIN], changed(RELATION, 22, b"c"), 22, "replica identity in d,n,f,i", "0x63",
        id="P6-identity",
    ),
    pytest.param(
        [BEGIN], changed(RELATION, 23, b"\0\5"), len(RELATION), "flags of column 5", "0 left",
        id="P7-too-few-columns",
    ),
    pytest.param(
        [BEGIN], changed(RELATION, 23, b"\0\3"), 59, "the end of the message", "13 more",
        id="P7-too-many-columns",
    ),
    pytest.param(
        [BEGIN], i("490000ffff4e0001"), 1, "a relation that was announced", "OID 65535",
        id="P8-unknown-relation",
    ),
    pytest.param(
        INSIDE, i("49000044994f0004"), 5, "Insert: tuple mark N", "0x4f", id="P9-insert-mark"
    ),
    pytest.param(
        INSIDE, i("49000044994e0003747474"), 6, "4 columns, as public.t_default has", "3",
        id="P10-column-count",
    ),
    pytest.param(
        INSIDE, i("49000044994e000478"), 8, "mark of column 1 (id) in n, u, t", "0x78",
        id="P11-kind",
    ),
    pytest.param(
        INSIDE, i("49000044994e0004747fffffff31"), 9, "column 1 (id) within the 1 bytes left",
        "length 2147483647", id="P12-length-beyond",
    ),
    pytest.param(
        INSIDE, i("49000044994e000474ffffffff31"), 9, "within the 1 bytes left", "length -1",
        id="P12-length-negative",
    ),
    pytest.param(
        INSIDE, i("49000044994e0004748000000031"), 9, "within", "length -2147483648",
        id="P12-length-lowest",
    ),
    pytest.param(
        INSIDE, changed(UPDATE, 16, b"O"), 16, "mark of column 4", "0x4f", id="P13-old-mark"
    ),
    pytest.param(
        INSIDE, changed(UPDATE, 17, b"O"), 17, "tuple mark N after the old tuple", "0x4f",
        id="P13-no-new-tuple",
    ),
    pytest.param(
        INSIDE, UPDATE[:17], 17, "Update: tuple mark in 1 bytes", "0 left", id="P13-new-cut"
    ),
    pytest.param(
        INSIDE, i("44000044994e0004"), 5, "Delete: tuple mark K or O", "0x4e", id="P14-delete-mark"
    ),
    pytest.param(
        INSIDE, i("54ffffffff00"), 1, "Truncate: 1 to 0 relations", "4294967295", id="P15-count"
    ),
    pytest.param(
        INSIDE, wire.truncate([OID], 4), 5, "Truncate: flags 0 to 3", "4", id="P15-flags"
    ),
    pytest.param(
        INSIDE, changed(wire.message("p", b"c", transactional=True), 1, b"\2"), 1,
        "Message: flags 0 or 1", "2", id="P16-flags",
    ),
    pytest.param(
        INSIDE, wire.message("p", b"cc", transactional=True)[:-1], 12,
        "content within the 1 bytes left", "length 2", id="P16-length",
    ),
    pytest.param(INSIDE, wire.stream_stop(), 0, "it in a segment", "in a tran", id="P17-E-alone"),
    pytest.param([], wire.insert(OID, ["1"]), 0, "it in a transaction", "between", id="P17-I-alone"),
    pytest.param(INSIDE, BEGIN, 0, "it between", "it in a transaction", id="P17-B-in-B"),
    pytest.param(
        INSIDE, wire.commit(101, 110), 2, "commit LSN 0x64 as in Begin", "0x65", id="P17-C-of-other"
    ),
    pytest.param(
        [], wire.stream_commit(7, 1, 2), 1, "the xid of an open stream", "7", id="P17-c-of-none"
    ),
    pytest.param([], wire.stream_start(7, first=True), 0, "not asked for", "one", id="S-unasked"),
    pytest.param(
        INSIDE, wire.origin(1, "o"), 0, "it right after the begin", "it later", id="P17-O-late"
    ),
    pytest.param(
        INSIDE, wire.message("p", b"", transactional=False), 1, "flags 0 elsewhere",
        "in a transaction", id="P17-M-inside",
    ),
    pytest.param(
        [], wire.message("p", b"", transactional=True), 1, "flags 1 elsewhere", "between",
        id="P17-M-outside",
    ),
    pytest.param(
        INSIDE, wire.insert(OID, ["1", "é", None, None]).replace(b"\xc3\xa9", b"\xc3("), 19,
        "column 2 (a) in UTF-8", "byte 0xc3", id="P19-utf8",
    ),
    pytest.param(
        INSIDE, wire.insert(OID, ["1", "a\0b", None, None]), 20, "column 2 (a) without NUL", "NUL",
        id="P19-nul",
    ),
    pytest.param(
        INSIDE, wire.insert(OID, [b"\0\0\0\1", "a", None, None]), 8, "in n, u, t", "0x62",
        id="P20-binary-unasked",
    ),
    pytest.param(
        [*INSIDE, COMMIT, wire.begin(90)], wire.commit(90, 95), 10, "from the last one", "0x5f",
        id="F7-order",
    ),
    pytest.param(
        [BEGIN], wire.relation(OID, "public", "t", [COLUMNS[0], COLUMNS[0]]), 30,
        "a name of its own", "id again", id="column-twice",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("before", "payload", "offset", "expected", "found"), CASES)
def test_fault_is_named_at_its_byte(
    before: list[bytes], payload: bytes, offset: int, expected: str, found: str
) -> None:
    error = fault(*before, payload)
    assert error.decoder == "pgoutput"
    assert error.offset == offset
    assert expected in error.expected
    assert found in error.found


@pytest.mark.parametrize("wrong", ["NUL", "UTF-8", "length", "mark", "end"])
def test_faults_are_found_when_rows_are_read_by_the_compiled_reader(wrong: str) -> None:
    good = wire.insert(OID, ["1", "some text", "2.50", None])
    bad = {
        "NUL": good.replace(b"some", b"so\0e"),
        "UTF-8": good.replace(b"some", b"so\xffe"),
        "length": good.replace(b"\0\0\0\x09", b"\0\0\0\x08"),
        "mark": good[:-1] + b"x",
        "end": good + b"n",
    }[wrong]
    assert len(feed(*INSIDE, good, good)) == 4
    error = fault(*INSIDE, good, bad)
    assert error.offset > 8


def test_stream_abort_has_the_size_of_the_mode() -> None:
    opened = [wire.stream_start(7, first=True), wire.stream_stop()]
    short, long = wire.stream_abort(7, 7), wire.stream_abort(7, 7, 50)
    feed(*opened, short, pgoutput__streaming="on")
    feed(*opened, long, pgoutput__streaming="parallel")
    assert fault(*opened, long, pgoutput__streaming="on").offset == 9
    assert fault(*opened, short, pgoutput__streaming="parallel").offset == 9


@pytest.mark.parametrize(
    ("payloads", "expected"),
    [
        pytest.param([wire.stream_start(8, first=True)], "it between", id="S-in-S"),
        pytest.param([wire.stream_abort(7, 7)], "it between", id="A-in-S"),
        pytest.param([wire.stream_commit(7, 1, 2)], "it between", id="c-in-S"),
        pytest.param([wire.stream_prepare(1, 2, 7, "g")], "it between", id="p-in-S"),
        pytest.param([COMMIT], "it in a transaction", id="C-in-S"),
        pytest.param([wire.insert(OID, ["1"], xid=7)], "announced", id="I-before-R"),
        pytest.param(
            [wire.stream_stop(), wire.stream_start(7, first=True)], "first segment flag 0",
            id="first-twice",
        ),
        pytest.param(
            [wire.stream_stop(), wire.stream_start(8, first=False)], "first segment flag 1",
            id="never-first",
        ),
    ],
)  # fmt: skip
def test_streams_out_of_order_are_refused(payloads: list[bytes], expected: str) -> None:
    error = fault(wire.stream_start(7, first=True), *payloads, pgoutput__streaming="on")
    assert expected in error.expected


def test_prepare_must_agree_with_its_begin() -> None:
    error = fault(wire.begin_prepare(10, 20, 7, "one"), wire.prepare(10, 20, 7, "two"))
    assert "as in Begin Prepare" in error.expected


def test_an_error_shows_the_bytes_around_and_no_more() -> None:
    error = fault(*INSIDE, wire.insert(OID, ["1", "x" * 5000, None, None]) + b"n")
    assert len(error.excerpt) <= 128
    assert "16/42" in str(error)
