"""Malformed decoderbufs: every fault is a DecodeError, whatever protobuf would forgive."""

import pytest
from tests.harness import decoderbufs_wire as wire
from tests.harness.captures import EmptyCatalogue, decoderbufs, sessions

from waltap.decode import Message
from waltap.errors import DecodeError

LSN = 0x65B_0000
BEGIN = wire.begin()
ID = wire.datum("id", 23, wire.int32(1))
SAMPLE = next(data for _, data in sessions("decoderbufs")["insert"] if b"t_default" in data)


def feed(*payloads: bytes) -> list[Message]:
    return decoderbufs(catalogue=EmptyCatalogue()).feed([(LSN, data) for data in payloads])


def fault(*payloads: bytes) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        feed(*payloads)
    assert (caught.value.decoder, caught.value.lsn) == ("decoderbufs", LSN)
    return caught.value


WIRE_FAULTS = [
    pytest.param(b"", 0, "field 4 op", "none", id="D1"),
    pytest.param(b"\x08\xb3", 1, "transaction_id ended", "goes on", id="D2"),
    pytest.param(b"\x08" + b"\xff" * 11, 1, "in 10 bytes", "more", id="D3"),
    pytest.param(b"\x08" + b"\xff" * 9 + b"\x02", 1, "in 64 bits", "more", id="D3-bits"),
    pytest.param(b"\x00\x01", 0, "a field number from 1 on", "0", id="D4"),
    pytest.param(b"\x0b", 0, "wire type 0, 1, 2 or 5", "3", id="D5-group"),
    pytest.param(b"\x0e", 0, "wire type 0, 1, 2 or 5", "6", id="D5-six"),
    pytest.param(b"\x0f", 0, "wire type 0, 1, 2 or 5", "7", id="D5-seven"),
    pytest.param(b"\x0a\x02ab", 0, "transaction_id as varint", "bytes", id="D6"),
    pytest.param(SAMPLE[:20], 13, "table of 16 bytes", "6 left", id="D7"),
    pytest.param(BEGIN[:-1] + b"\x09", len(BEGIN) - 1, "op from 0 to 4", "9", id="D8"),
    pytest.param(
        BEGIN[:-1] + wire.varint(-1), len(BEGIN) - 1, "op from 0 to 4", "1844", id="D8-unknown"
    ),
    pytest.param(
        wire.insert(ID, info=[wire.block(1, "integer")]), None, "value_optional", "none",
        id="D11-type-info",
    ),
    pytest.param(
        wire.insert(wire.datum("p", 600, wire.block(10, wire.float64(1, 1)))), None,
        "datum_point: y", "none", id="D11-point",
    ),
    pytest.param(
        wire.insert(wire.datum("id", 23, wire.int32(1) + wire.text("abc"))), None, "one datum",
        "datum_int32 and datum_string", id="D12",
    ),
    pytest.param(
        wire.insert(wire.datum("id", 23, wire.int32(1) + wire.int32(2))), None,
        "datum_int32 once", "it again", id="D12-twice",
    ),
    pytest.param(
        wire.insert(wire.datum("v", 25, wire.text("xx"))).replace(b"xx", b"\xc3("), None,
        "datum_string in UTF-8", "byte 0xc3", id="D14-string",
    ),
    pytest.param(
        wire.insert(wire.datum("xx", 25)).replace(b"xx", b"\xff("), None,
        "column_name in UTF-8", "byte 0xff", id="D14-name",
    ),
    pytest.param(
        wire.insert(wire.datum("f", 700, b"\x2d\0\0")), None, "datum_float of 4 bytes", "2 left",
        id="D15",
    ),
    pytest.param(
        wire.insert(wire.datum("id", 23, wire.varint(3 << 3 | 5) + b"\0\0\0\0")), None,
        "datum_int32 as varint", "fixed32", id="wire-type-of-a-datum",
    ),
    pytest.param(
        wire.insert(wire.datum("id", 23, wire.number(3, 1 << 40))), None, "datum_int32 from",
        str(1 << 40), id="int32-range",
    ),
    pytest.param(
        wire.insert(wire.datum("b", 16, wire.number(7, 2))), None, "datum_bool from 0 to 1", "2",
        id="bool-range",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("payload", "offset", "expected", "found"), WIRE_FAULTS)
def test_fault_of_the_wire_is_named(
    payload: bytes, offset: int | None, expected: str, found: str
) -> None:
    error = fault(BEGIN, payload)
    assert expected in error.expected
    assert found in error.found
    if offset is not None:
        assert error.offset == offset


ROW_FAULTS = [
    pytest.param(wire.message(wire.INSERT, new=[ID]), "schema.table", id="D9-none"),
    pytest.param(wire.insert(ID, table='"a.b'), "schema.table", id="D9-quote"),
    pytest.param(wire.insert(ID, table="a"), "schema.table", id="D9-no-dot"),
    pytest.param(wire.insert(ID, table="a.b.c"), "schema.table", id="D9-two-dots"),
    pytest.param(wire.insert(ID, info=[]), "1 new_typeinfo", id="D10-old-plugin"),
    pytest.param(wire.insert(ID, info=[wire.type_info()] * 2), "1 new_typeinfo", id="D10-more"),
    pytest.param(wire.insert(wire.datum("id", 23, wire.text("1"))), "as datum_int32", id="D13-int"),
    pytest.param(wire.insert(wire.datum("v", 25, wire.int32(1))), "as datum_string", id="D13-text"),
    pytest.param(wire.insert(wire.datum("e", 70000, wire.text("a"))), "as datum_bytes", id="D13-enum"),
    pytest.param(
        wire.insert(wire.datum("id", 23, wire.number(11, 0))), "as datum_int32", id="missing-false"
    ),
    pytest.param(wire.insert(wire.datum("e", 70000, wire.raw(b"\xff"))), "UTF-8", id="D14-bytes"),
    pytest.param(wire.insert(wire.datum("v", 25, wire.text("a\0"))), "without NUL", id="nul"),
    pytest.param(wire.insert(wire.datum("i", 21, wire.int32(40000))), "32767", id="int2-range"),
    pytest.param(wire.insert(wire.datum("d", 1082, wire.int32(-2440589))), "days", id="date-range"),
    pytest.param(wire.insert(wire.datum("t", 1083, wire.int64(-1))), "microseconds", id="time-range"),
    pytest.param(wire.insert(wire.datum("z", 1266, wire.float64(0.5))), "whole", id="timetz"),
    pytest.param(wire.insert(ID, ID), "each column once", id="column-twice"),
    pytest.param(wire.insert(wire.datum('"id', 23)), "an identifier", id="name-quote"),
    pytest.param(wire.insert(wire.datum("id", 0)), "a type OID", id="oid"),
    pytest.param(wire.insert(), "new_tuple alone in INSERT", id="insert-empty"),
    pytest.param(
        wire.message(wire.INSERT, table="s.t", new=[ID], old=[ID]), "new_tuple alone",
        id="insert-old",
    ),
    pytest.param(
        wire.message(wire.DELETE, table="s.t", new=[ID]), "no new_tuple in DELETE", id="delete-new"
    ),
    pytest.param(
        wire.message(wire.UPDATE, table="s.t", old=[ID]), "new_tuple in UPDATE", id="update-old"
    ),
    pytest.param(wire.message(wire.COMMIT, new=[ID]), "no table and no tuples", id="D16-tuples"),
    pytest.param(wire.message(wire.COMMIT, table="s.t"), "no table", id="D16-table"),
    pytest.param(wire.begin(), "by turns", id="D16-begin"),
    pytest.param(wire.commit(xid=8), "transaction_id 7", id="D16-xid"),
]  # fmt: skip


@pytest.mark.parametrize(("payload", "expected"), ROW_FAULTS)
def test_fault_of_a_row_is_named(payload: bytes, expected: str) -> None:
    assert expected in fault(BEGIN, payload).expected


def test_fields_of_a_newer_plugin_are_passed_over() -> None:
    newer = wire.insert(wire.datum("id", 23, wire.int32(1) + wire.number(15, 9)))
    newer += wire.block(99, b"news") + wire.varint(100 << 3 | 5) + b"\0\0\0\0"
    assert feed(BEGIN, newer)[-1].new == ("1",)


def test_fields_in_another_order_are_read() -> None:
    backwards = wire.number(4, wire.INSERT) + wire.block(7, wire.type_info())
    backwards += wire.block(5, wire.int32(5) + wire.number(2, 23) + wire.block(1, "id"))
    backwards += wire.block(3, "s.t") + wire.number(1, 7)
    assert feed(BEGIN, backwards)[-1].new == ("5",)
