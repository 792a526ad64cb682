"""Malformed messages of each plugin: every fault is a DecodeError at its byte, with what was expected.

That any damage is an error is a promise of `DecoderSuite`, which damages the recorded sessions.
"""

import pytest
from tests.harness import decoderbufs_wire as proto
from tests.harness import pgoutput_wire as wire
from tests.harness.captures import decoderbufs, pgoutput, sessions, wal2json

from waltap.changes.decode import Decoder, LogicalMessage
from waltap.errors import DecodeError
from waltap_testing.recording import StaticCatalogue

LSN = 0x16_0000_0042


def fault(decoder: Decoder, *payloads: bytes | str) -> DecodeError:
    """Return the error of the last of ``payloads``; those before it are taken."""
    frames = [(LSN, each.encode() if isinstance(each, str) else each) for each in payloads]
    for frame in frames[:-1]:
        decoder.feed([frame])
    with pytest.raises(DecodeError) as caught:
        decoder.feed(frames[-1:])
    assert (caught.value.decoder, caught.value.lsn) == (decoder.name, LSN)
    return caught.value


# --- pgoutput ------------------------------------------------------------------------------------

OID = 0x4499
COLUMNS = [("id", 23, -1, True), ("a", 25, -1, False), ("n", 1700, 655366, False)]
COLUMNS += [("big", 25, -1, False)]
RELATION = wire.relation(OID, "public", "t_default", COLUMNS)
BEGIN = wire.begin(100)
COMMIT = wire.commit(100, 110)
INSIDE = [BEGIN, RELATION]
UPDATE = wire.update(OID, ["20", "dos", "2.00", None], ["2", None, None, None])
MESSAGE = wire.message("p", b"cc", transactional=True)
OPENED = [wire.stream_start(7, first=True), wire.stream_stop()]


def changed(payload: bytes, at: int, new: bytes) -> bytes:
    return payload[:at] + new + payload[at + len(new) :]


i = bytes.fromhex

PGOUTPUT = {
    "empty": ([], b"", 0, "a message type", "an empty payload"),
    "unknown type": ([], i("5a0000"), 0, "a message type", "0x5a"),
    "begin cut": ([], i("420000000006542c10000303ae7e026b260000"), 17, "Begin: xid in 4 bytes", "2 left"),
    "commit flags": (INSIDE, changed(COMMIT, 1, b"\1"), 1, "Commit: flags 0", "1"),
    "trailing": (INSIDE, COMMIT + b"\0", 26, "Commit: the end of the message", "1 more"),
    "no terminator": ([BEGIN], i("520000449970") + b"ublic", 5, "Relation: namespace ended by NUL", "no NUL"),
    "identity": ([BEGIN], changed(RELATION, 22, b"c"), 22, "replica identity in d,n,f,i", "0x63"),
    "too few columns": ([BEGIN], changed(RELATION, 23, b"\0\5"), len(RELATION), "flags of column 5", "0 left"),
    "too many columns": ([BEGIN], changed(RELATION, 23, b"\0\3"), 59, "the end of the message", "13 more"),
    "unknown relation": ([BEGIN], i("490000ffff4e0001"), 1, "a relation that was announced", "OID 65535"),
    "insert tag": (INSIDE, i("49000044994f0004"), 5, "Insert: tuple tag N", "0x4f"),
    "column count": (INSIDE, i("49000044994e0003747474"), 6, "4 columns, as public.t_default has", "3"),
    "kind": (INSIDE, i("49000044994e000478"), 8, "tag of column 1 (id) in n, u, t", "0x78"),
    "length beyond": (INSIDE, i("49000044994e0004747fffffff31"), 9, "(id) within the 1 bytes left", "length 2147483647"),
    "length negative": (INSIDE, i("49000044994e000474ffffffff31"), 9, "within the 1 bytes left", "length -1"),
    "old tag": (INSIDE, changed(UPDATE, 16, b"O"), 16, "tag of column 4", "0x4f"),
    "no new tuple": (INSIDE, changed(UPDATE, 17, b"O"), 17, "tuple tag N after the old tuple", "0x4f"),
    "new cut": (INSIDE, UPDATE[:17], 17, "Update: tuple tag in 1 bytes", "0 left"),
    "delete tag": (INSIDE, i("44000044994e0004"), 5, "Delete: tuple tag K or O", "0x4e"),
    "truncate count": (INSIDE, i("54ffffffff00"), 1, "Truncate: 1 to 0 relations", "4294967295"),
    "truncate flags": (INSIDE, wire.truncate([OID], 4), 5, "Truncate: flags 0 to 3", "4"),
    "message flags": (INSIDE, changed(MESSAGE, 1, b"\2"), 1, "Message: flags 0 or 1", "2"),
    "message length": (INSIDE, MESSAGE[:-1], 12, "content within the 1 bytes left", "length 2"),
    "stop alone": (INSIDE, wire.stream_stop(), 0, "it in a segment", "in a tran"),
    "commit of another": (INSIDE, wire.commit(101, 110), 2, "commit LSN 0x64 as in Begin", "0x65"),
    "commit of no stream": ([], wire.stream_commit(7, 1, 2), 1, "the xid of an open stream", "7"),
    "stream unasked": ([], OPENED[0], 0, "not asked for", "one"),
    "origin late": (INSIDE, wire.origin(1, "o"), 0, "it right after the begin", "it later"),
    "message inside": (INSIDE, wire.message("p", b"", transactional=False), 1, "flags 0 elsewhere", "in a transaction"),
    "message outside": ([], wire.message("p", b"", transactional=True), 1, "flags 1 elsewhere", "between"),
    "UTF-8": (
        INSIDE, wire.insert(OID, ["1", "é", None, None]).replace(b"\xc3\xa9", b"\xc3("), 19, "(a) in UTF-8", "byte 0xc3",
    ),
    "NUL": (INSIDE, wire.insert(OID, ["1", "a\0b", None, None]), 20, "column 2 (a) without NUL", "NUL"),
    "order": ([*INSIDE, COMMIT, wire.begin(90)], wire.commit(90, 95), 10, "from the last one", "0x5f"),
    "column twice": (
        [BEGIN], wire.relation(OID, "public", "t", [COLUMNS[0]] * 2), 30, "a name of its own", "id again",
    ),
    "prepare of another": (
        [wire.begin_prepare(10, 20, 7, "one")], wire.prepare(10, 20, 7, "two"), 2, "as in Begin Prepare", "others",
    ),
    "order after a prepared one": (
        [wire.begin_prepare(10, 20, 7, "one"), wire.prepare(10, 20, 7, "one"), wire.begin(5)],
        wire.commit(5, 15), 10, "from the last one, 0x14", "0xf",
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("before", "payload", "offset", "expected", "found"), PGOUTPUT.values(), ids=PGOUTPUT
)
def test_a_fault_of_pgoutput_is_named_at_its_byte(before, payload, offset, expected, found):
    error = fault(pgoutput(version=160000), *before, payload)
    assert error.offset == offset
    assert expected in error.expected
    assert found in error.found


@pytest.mark.parametrize("wrong", ["NUL", "UTF-8", "length", "mark", "end"])
def test_faults_are_found_when_rows_are_read_by_the_compiled_reader(wrong):
    good = wire.insert(OID, ["1", "some text", "2.50", None])
    bad = {
        "NUL": good.replace(b"some", b"so\0e"),
        "UTF-8": good.replace(b"some", b"so\xffe"),
        "length": good.replace(b"\0\0\0\x09", b"\0\0\0\x08"),
        "mark": good[:-1] + b"x",
        "end": good + b"n" * 5000,
    }[wrong]
    error = fault(pgoutput(version=160000), *INSIDE, good, bad)
    assert error.offset > 8
    assert len(error.excerpt) <= 128
    assert "16/42" in str(error)


STREAMS = {
    "abort too long": ("on", [OPENED[1], wire.stream_abort(7, 7, 50)], "Stream Abort"),
    "abort too short": ("parallel", [OPENED[1], wire.stream_abort(7, 7)], "Stream Abort"),
    "start in a segment": ("on", [wire.stream_start(8, first=True)], "it between"),
    "abort in a segment": ("on", [wire.stream_abort(7, 7)], "it between"),
    "commit in a segment": ("on", [wire.stream_commit(7, 1, 2)], "it between"),
    "prepare in a segment": ("on", [wire.stream_prepare(1, 2, 7, "g")], "it between"),
    "another commit": ("on", [COMMIT], "it in a transaction"),
    "insert before relation": ("on", [wire.insert(OID, ["1"], xid=7)], "announced"),
    "order": ("on", [OPENED[1], wire.stream_commit(7, 100, 110), wire.begin(90), wire.commit(90, 95)], "the last one"),
    "first twice": ("on", [OPENED[1], OPENED[0]], "first segment flag 0"),
}  # fmt: skip


@pytest.mark.parametrize(("mode", "payloads", "expected"), STREAMS.values(), ids=STREAMS)
def test_a_fault_of_a_stream_is_named(mode, payloads, expected):
    decoder = pgoutput(version=160000, pgoutput__streaming=mode)
    assert expected in fault(decoder, OPENED[0], *payloads).expected


# --- decoderbufs ---------------------------------------------------------------------------------

SAMPLE = next(data for _, data in sessions("decoderbufs")["insert"] if b"t_default" in data)
START = proto.begin()
ID = proto.datum("id", 23, proto.int32(1))


def cell(oid: int, value: bytes = b"", name: str = "c") -> bytes:
    return proto.insert(proto.datum(name, oid, value))


PROTOBUF = {
    "no op": (b"", 0, "field 4 op", "none"),
    "varint cut": (b"\x08\xb3", 1, "transaction_id ended", "unfinished"),
    "varint too long": (b"\x08" + b"\xff" * 11, 1, "in 10 bytes", "more"),
    "varint of more bits": (b"\x08" + b"\xff" * 9 + b"\x02", 1, "in 64 bits", "more"),
    "field 0": (b"\x00\x01", 0, "a field number from 1 on", "0"),
    "a group": (b"\x0b", 0, "wire type 0, 1, 2 or 5", "3"),
    "text as a number": (b"\x0a\x02ab", 0, "transaction_id as varint", "bytes"),
    "cut": (SAMPLE[:20], 13, "table of 16 bytes", "6 left"),
    "op 9": (START[:-1] + b"\x09", len(START) - 1, "op from 0 to 4", "9"),
    "op -1": (START[:-1] + proto.varint(-1), len(START) - 1, "op from 0 to 4", "1844"),
    "half a type": (proto.insert(ID, info=[proto.block(1, "integer")]), None, "value_optional", "none"),
    "half a point": (cell(600, proto.block(10, proto.float64(1, 1))), None, "datum_point: y", "none"),
    "two members": (cell(23, proto.int32(1) + proto.text("a")), None, "one datum", "datum_int32 and datum_string"),
    "a member twice": (cell(23, proto.int32(1) * 2), None, "datum_int32 once", "it again"),
    "text in UTF-8": (cell(25, proto.text("xx")).replace(b"xx", b"\xc3("), None, "datum_string in UTF-8", "byte 0xc3"),
    "a name in UTF-8": (cell(25, name="xx").replace(b"xx", b"\xff("), None, "column_name in UTF-8", "byte 0xff"),
    "half a float": (cell(700, b"\x2d\0\0"), None, "datum_float of 4 bytes", "2 left"),
    "another wire type": (cell(23, proto.varint(3 << 3 | 5) + b"\0\0\0\0"), None, "datum_int32 as varint", "fixed32"),
    "int32": (cell(23, proto.number(3, 1 << 40)), None, "datum_int32 from", str(1 << 40)),
    "bool": (cell(16, proto.number(7, 2)), None, "datum_bool from 0 to 1", "2"),
    # faults of rows
    "no table": (proto.message(proto.INSERT, new=[ID]), None, "schema.table", ""),
    "a table of three": (proto.insert(ID, table="a.b.c"), None, "schema.table", ""),
    "no types": (proto.insert(ID, info=[]), None, "1 new_typeinfo", ""),
    "int as text": (cell(23, proto.text("1")), None, "as datum_int32", ""),
    "missing is false": (cell(23, proto.number(11, 0)), None, "as datum_int32", ""),
    "enum in UTF-8": (cell(70000, proto.raw(b"\xff")), None, "UTF-8", ""),
    "NUL": (cell(25, proto.text("a\0")), None, "without NUL", ""),
    "int2": (cell(21, proto.int32(40000)), None, "32767", ""),
    "date": (cell(1082, proto.int32(-2440589)), None, "days", ""),
    "time": (cell(1083, proto.int64(-1)), None, "microseconds", ""),
    "timetz": (cell(1266, proto.float64(0.5)), None, "whole", ""),
    "column twice": (proto.insert(ID, ID), None, "each column once", ""),
    "a quote in the column": (cell(23, name='"id'), None, "an identifier", ""),
    "OID 0": (cell(0), None, "a type OID", ""),
    "insert of nothing": (proto.insert(), None, "new_tuple alone in INSERT", ""),
    "insert with old": (proto.message(proto.INSERT, table="s.t", new=[ID], old=[ID]), None, "new_tuple alone", ""),
    "delete with new": (proto.message(proto.DELETE, table="s.t", new=[ID]), None, "no new_tuple in DELETE", ""),
    "update without new": (proto.message(proto.UPDATE, table="s.t", old=[ID]), None, "new_tuple in UPDATE", ""),
    "commit with rows": (proto.message(proto.COMMIT, new=[ID]), None, "no table and no tuples", ""),
    "commit of another": (proto.commit(xid=8), None, "transaction_id 7", ""),
}  # fmt: skip


@pytest.mark.parametrize(
    ("payload", "offset", "expected", "found"), PROTOBUF.values(), ids=PROTOBUF
)
def test_a_fault_of_decoderbufs_is_named(payload, offset, expected, found):
    error = fault(decoderbufs(catalogue=StaticCatalogue()), START, payload)
    assert expected in error.expected
    assert found in error.found
    assert offset in (None, error.offset)


def test_fields_of_a_newer_plugin_and_in_another_order_are_read():
    newer = proto.insert(proto.datum("id", 23, proto.int32(1) + proto.number(15, 9)))
    newer += proto.block(99, b"news") + proto.varint(100 << 3 | 5) + b"\0\0\0\0"
    backwards = proto.number(4, proto.INSERT) + proto.block(7, proto.type_info())
    backwards += proto.block(5, proto.int32(5) + proto.number(2, 23) + proto.block(1, "id"))
    backwards += proto.block(3, "s.t") + proto.number(1, 7)
    decoder = decoderbufs(catalogue=StaticCatalogue())
    decoder.feed([(LSN, START)])
    assert [decoder.feed([(LSN, each)])[-1].new for each in (newer, backwards)] == [("1",), ("5",)]


# --- wal2json ------------------------------------------------------------------------------------

HEAD = '"xid":7,"timestamp":"2026-11-20 06:55:03.5+00","origin":0,"lsn":"0/10"'
B = f'{{"action":"B",{HEAD},"nextlsn":"0/20"}}'
C = B.replace('"B"', '"C"')
TABLE = '"schema":"public","table":"t"'


def column(name: str, value: str, oid: int = 23) -> str:
    return f'{{"name":"{name}","typeoid":{oid},"value":{value}}}'


def insert(*columns: str) -> str:
    return f'{{"action":"I",{HEAD},{TABLE},"columns":[{",".join(columns)}]}}'


ONE = insert(column("id", "1"))
FORMAT_2 = {
    "cut": ('{"action":"I","schema":"public"', 31, "JSON", "the end"),
    "two": ('{"action":"B"}{"action":"C"}', 14, "JSON (Extra data)", "{"),
    "array": ("[]", 0, "a JSON object", "list"),
    "no action": ('{"xid":1}', 0, "a wal2json action", "missing required field `action`"),
    "unknown action": ('{"action":"X"}', 10, "action B, C, I, U, D, T or M", "'X'"),
    "no schema": ('{"action":"I","table":"t"}', 14, "a schema", "none"),
    "no columns": (f'{{"action":"I",{HEAD},{TABLE}}}', 0, "columns in I", "opposite"),
    "no value": (insert('{"name":"id","typeoid":23}'), '"id"', "a value of column 'id'", "none"),
    "NaN": (insert(column("id", "NaN")), ":NaN", "a JSON number", "bare NaN"),
    "-Infinity": (insert(column("id", "-Infinity")), ":-Inf", "a JSON number", "-Infinity"),
    "array for int": (insert(column("id", "[1,2]")), '"id"', "an integer", "list"),
    "object for text": (insert(column("v", "{}", 25)), '"v"', "a string", "dict"),
    "column twice": (insert(column("id", "1"), column("id", "2")), '"id"', "each column once", "'id' again"),
    "key twice": ('{"action":"B","action":"C"}', 1, "each key once", "'action' again"),
    "value twice": (insert(column("id", '1,"value":2')), '"value"', "each key once", "'value'"),
    "int range": (insert(column("id", "2147483648")), '"id"', "from -2147483648", "int"),
    "bool for int": (insert(column("id", "true")), '"id"', "an integer", "bool"),
    "odd hex": (insert(column("b", '"abc"', 17)), '"b"', "hexadecimal", "str"),
    "int for bool": (insert(column("b", "1", 16)), '"b"', "true or false", "int"),
    "text for numeric": (insert(column("n", '"1"', 1700)), '"n"', "a number", "str"),
    "xid of another": (ONE.replace('"xid":7', '"xid":8'), '"xid"', "xid 7", "8"),
    "LSN of another": (C.replace("0/10", "0/11"), '"lsn"', "lsn 0x10 as in B", "0/11"),
    "no LSN": (C.replace("0/20", "0/XYZ"), '"nextlsn"', "an LSN in nextlsn", "'0/XYZ'"),
    "message without content": (
        f'{{"action":"M",{HEAD},"transactional":true,"prefix":"p"}}', '"prefix"', "transactional, prefix and content", "less",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("text", "offset", "expected", "found"), FORMAT_2.values(), ids=FORMAT_2)
def test_a_fault_of_format_2_is_named_at_its_byte(text, offset, expected, found):
    """``offset``: a number, or what stands at the place."""
    error = fault(wal2json(catalogue=StaticCatalogue()), B, text)
    assert expected in error.expected
    assert found in error.found
    assert error.offset == (offset if isinstance(offset, int) else text.index(offset))


def test_keys_of_a_newer_plugin_are_passed_over():
    newer = insert(column("id", '1,"novelty":[1,{"a":2}]'))
    decoder = wal2json(catalogue=StaticCatalogue())
    assert decoder.feed([(LSN, B.encode()), (LSN, newer.encode())])[-1].new == ("1",)


def transaction(changes: str) -> str:
    stamp = '"timestamp":"2026-11-20 06:55:03+00","origin":0'
    return f'{{"xid":7,"nextlsn":"0/20",{stamp},"change":{changes}}}'


def change(
    kind: str = "insert", names: str = '["id"]', oids: str = "[23]", values: str = "[1]"
) -> str:
    listed = f'"columnnames":{names},"columntypeoids":{oids},"columnvalues":{values}'
    return f'{{"kind":"{kind}",{TABLE},{listed}}}'


OPENER = '{"xid":7,"nextlsn":"0/20","change":['
EMPTY_MESSAGE = '[{"kind":"message","transactional":false,"prefix":"","content":""}]'
OTHERS = {
    "2 xid -1": ([B.replace(":7,", ":-1,")], "xid from 0"),
    "2 xid of 33 bits": ([B.replace(":7,", ":4294967296,")], "xid from 0"),
    "2 time": ([B.replace("2026-11-20", "yesterday")], "a timestamp"),
    "2 time without zone": ([B.replace("+00", "")], "with its zone"),
    "2 LSN": ([B.replace("0/10", "0x10")], "an LSN in lsn"),
    "2 deep": (["[" * 100_000], "a few levels"),
    "2 type": (['{"action":"B","xid":"7"}'], "wal2json action"),
    "1 values": ([transaction(f"[{change(values='[1,2]')}]")], "of one length"),
    "1 kind": ([transaction(f"[{change(kind='upsert')}]")], "kind insert"),
    "1 array": ([transaction('{"kind":"insert"}')], "a wal2json transaction"),
    "1 delete": ([transaction(f'[{{"kind":"delete",{TABLE}}}]')], "old keys"),
    "1 cut": ([transaction(f"[{change()}")], "JSON"),
    "1 message": ([transaction(EMPTY_MESSAGE)], "transactional message"),
    "chunks no xid": ([OPENER.replace('"xid":7,', "")], "xid in a transaction's opener"),
    "chunks another type": ([OPENER, '{"kind":1}'], "a wal2json change"),
    "1 stray comma": (['{"change":[,]}'], "JSON"),
    "1 two commas": ([f'{{"change":[,,{EMPTY_MESSAGE[1:]}}}'], "JSON"),
    "chunks row alone": (["," + change()], "opener first"),
    "chunks first comma": ([OPENER, "," + change()], "a change"),
    "chunks no comma": ([OPENER, change(), change()], "a comma"),
    "chunks closer twice": ([OPENER, "]}", "]}"], "opener first"),
    "chunks whole": ([transaction("[]")], "an opener"),
}


def of_format(name: str) -> Decoder:
    empty = StaticCatalogue()
    return wal2json("2" if name == "2" else "1", chunks=name == "chunks", catalogue=empty)


@pytest.mark.parametrize("name", OTHERS)
def test_a_fault_of_another_format_of_wal2json_is_named(name):
    texts, expected = OTHERS[name]
    error = fault(of_format(name.split()[0]), *texts)
    assert expected in error.expected
    assert error.offset == 11 or "comma" not in name or expected != "JSON"


@pytest.mark.parametrize("form", ["1", "chunks"])
@pytest.mark.parametrize("space", ["", "\n\t\t"])
def test_a_comma_before_a_message_between_transactions_is_passed_over(space, form):
    """wal2json counts the changes of the transaction before it."""
    item = '{"kind":"message","transactional":false,"prefix":",[{","content":"{\\"change\\":[,{"}'
    text = f'{{{space}"change":[{space},{item}{space}]}}'
    (found,) = of_format(form).feed([(LSN, text.encode())])
    assert isinstance(found, LogicalMessage)
    assert (found.prefix, found.content) == (",[{", b'{"change":[,{')
