"""Malformed wal2json: every fault is a DecodeError, with its place."""

import pytest
from tests.harness.captures import EmptyCatalogue, wal2json

from waltap.decode import Begin, Commit, LogicalMessage, Message
from waltap.errors import DecodeError

LSN = 0x65B_0000
HEAD = '"xid":7,"timestamp":"2026-11-20 06:55:03.5+00","origin":0,"lsn":"0/10"'
B = f'{{"action":"B",{HEAD},"nextlsn":"0/20"}}'
C = B.replace('"B"', '"C"')


def column(name: str, value: str, oid: int = 23) -> str:
    return f'{{"name":"{name}","typeoid":{oid},"value":{value}}}'


def insert(*columns: str) -> str:
    listed = ",".join(columns)
    return f'{{"action":"I",{HEAD},"schema":"public","table":"t","columns":[{listed}]}}'


def feed(*texts: str, first_format: bool = False, chunks: bool = False) -> list[Message]:
    decoder = wal2json("1" if first_format else "2", chunks=chunks, catalogue=EmptyCatalogue())
    return decoder.feed([(LSN, text.encode()) for text in texts])


def fault(*texts: str, **how: bool) -> DecodeError:
    with pytest.raises(DecodeError) as caught:
        feed(*texts, **how)
    assert (caught.value.decoder, caught.value.lsn) == ("wal2json", LSN)
    return caught.value


ROW_FAULTS = [
    pytest.param('{"action":"I","schema":"public"', 31, "JSON", "the end", id="W3-cut"),
    pytest.param('{"action":"B"}{"action":"C"}', 14, "JSON (Extra data)", "{", id="W4-two"),
    pytest.param("[]", 0, "a JSON object", "list", id="W5-array"),
    pytest.param('"B"', 0, "a JSON object", "str", id="W5-string"),
    pytest.param("null", 0, "a JSON object", "NoneType", id="W5-null"),
    pytest.param('{"xid":1}', 0, "a wal2json action", "missing required field `action`", id="W6-no"),
    pytest.param('{"action":"X"}', 10, "action B, C, I, U, D, T or M", "'X'", id="W6-unknown"),
    pytest.param('{"action":"I","table":"t"}', 14, "a schema", "none", id="W7-schema"),
    pytest.param(
        f'{{"action":"I",{HEAD},"schema":"public","table":"t"}}', 0, "columns in I", "opposite",
        id="W7-columns",
    ),
    pytest.param(insert('{"name":"id","typeoid":23}'), '"id"', "a value of column 'id'", "none", id="W8"),
    pytest.param(insert(column("id", "NaN")), ':NaN', "a JSON number", "bare NaN", id="W9-nan"),
    pytest.param(insert(column("id", "-Infinity")), ':-Inf', "a JSON number", "-Infinity", id="W9-inf"),
    pytest.param(insert(column("id", "[1,2]")), '"id"', "an integer", "list", id="W10-array"),
    pytest.param(insert(column("v", "{}", 25)), '"v"', "a string", "dict", id="W10-object"),
    pytest.param(
        insert(column("id", "1"), column("id", "2")), '"id"', "each column once", "'id' again",
        id="W11-column",
    ),
    pytest.param(
        '{"action":"B","action":"C"}', 1, "each key once", "'action' again", id="W11-key"
    ),
    pytest.param(
        insert('{"name":"id","typeoid":23,"value":1,"value":2}'), '"value"', "each key once", "'value'",
        id="W11-value",
    ),
    pytest.param(insert(column("id", "2147483648")), '"id"', "from -2147483648", "int", id="W15-range"),
    pytest.param(insert(column("id", '"abc"')), '"id"', "an integer", "str", id="W15-text"),
    pytest.param(insert(column("id", "1.5")), '"id"', "an integer", "Number", id="W15-fraction"),
    pytest.param(insert(column("id", "true")), '"id"', "an integer", "bool", id="W15-boolean"),
    pytest.param(insert(column("b", '"abc"', 17)), '"b"', "hexadecimal", "str", id="W15-odd-hex"),
    pytest.param(insert(column("b", '"zz"', 17)), '"b"', "hexadecimal", "str", id="W15-no-hex"),
    pytest.param(insert(column("b", "1", 16)), '"b"', "true or false", "int", id="W15-bool"),
    pytest.param(insert(column("n", '"1"', 1700)), '"n"', "a number", "str", id="W15-numeric"),
    pytest.param(insert(column("v", "1", 25)), '"v"', "a string", "int", id="W15-bare"),
    pytest.param(B, '"B"', "C before the next B", "B", id="W17-B-in-B"),
    pytest.param(insert(column("id", "1")).replace('"xid":7', '"xid":8'), '"xid"', "xid 7", "8", id="W17-xid"),
    pytest.param(C.replace("0/10", "0/11"), '"lsn"', "lsn 0x10 as in B", "0/11", id="W17-lsn"),
    pytest.param(C.replace("0/20", "0/XYZ"), '"nextlsn"', "an LSN in nextlsn", "'0/XYZ'", id="W16-lsn"),
    pytest.param(
        f'{{"action":"M",{HEAD},"transactional":true,"prefix":"p"}}', '"prefix"',
        "transactional, prefix and content", "less", id="M-content",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "offset", "expected", "found"), ROW_FAULTS)
def test_fault_of_format_2_is_named_at_its_byte(
    text: str, offset: int | str, expected: str, found: str
) -> None:
    """``offset``: a number, or what stands at the place."""
    error = fault(B, text)
    assert expected in error.expected
    assert found in error.found
    assert error.offset == (offset if isinstance(offset, int) else text.index(offset))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(C, "B first", id="W17-C-alone"),
        pytest.param(insert(column("id", "1")), "B first", id="W17-I-alone"),
        pytest.param(B.replace(":7,", ":-1,"), "xid from 0", id="W16-xid"),
        pytest.param(B.replace(":7,", ":4294967296,"), "xid from 0", id="W16-xid-large"),
        pytest.param(B.replace("2026-11-20", "yesterday"), "a timestamp", id="W16-time"),
        pytest.param(B.replace("+00", ""), "with its zone", id="W16-zone"),
        pytest.param(B.replace("0/10", "0x10"), "an LSN in lsn", id="W16-lsn"),
        pytest.param("[" * 100_000, "a few levels", id="deep"),
        pytest.param('{"action":"B","xid":"7"}', "wal2json action", id="type"),
    ],
)
def test_fault_between_transactions_is_named(text: str, expected: str) -> None:
    assert expected in fault(text).expected


def test_invalid_utf8_is_named_at_its_byte() -> None:
    bad = insert(column("v", '"ab"', 25)).encode().replace(b'"ab"', b'"a\xff"')
    with pytest.raises(DecodeError) as caught:
        wal2json().feed([(LSN, B.encode()), (LSN, bad)])
    assert (caught.value.offset, caught.value.found) == (bad.index(b"\xff"), "byte 0xff")


def test_keys_of_a_newer_plugin_are_passed_over() -> None:
    newer = insert(column("id", "1")[:-1] + ',"novelty":[1,{"a":2}]}')
    assert feed(B, newer)[-1].new == ("1",)


def transaction(changes: str) -> str:
    return (
        '{"xid":7,"nextlsn":"0/20","timestamp":"2026-11-20 06:55:03+00","origin":0,'
        f'"change":{changes}}}'
    )


def change(
    kind: str = "insert", names: str = '["id"]', oids: str = "[23]", values: str = "[1]"
) -> str:
    return (
        f'{{"kind":"{kind}","schema":"public","table":"t","columnnames":{names},'
        f'"columntypeoids":{oids},"columnvalues":{values}}}'
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(transaction(f'[{change(values="[1,2]")}]'), "of one length", id="W12-values"),
        pytest.param(transaction(f'[{change(oids="[]")}]'), "of one length", id="W12-types"),
        pytest.param(transaction(f'[{change(kind="upsert")}]'), "kind insert", id="W13-kind"),
        pytest.param(transaction('{"kind":"insert"}'), "a wal2json transaction", id="W13-array"),
        pytest.param(transaction("[1]"), "a wal2json transaction", id="W13-number"),
        pytest.param(transaction('[{"kind":"delete","schema":"s","table":"t"}]'), "old keys", id="D"),
        pytest.param(transaction(f"[{change()}"), "JSON", id="cut"),
        pytest.param(
            transaction('[{"kind":"message","transactional":false,"prefix":"","content":""}]'),
            "transactional message", id="message",
        ),
        pytest.param('{"xid":7}', "a wal2json transaction", id="no-change"),
    ],
)  # fmt: skip
def test_fault_of_format_1_is_named(text: str, expected: str) -> None:
    assert expected in fault(text, first_format=True).expected


OPENER = '{"xid":7,"nextlsn":"0/20","change":['


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        pytest.param(["," + change()], "opener first", id="W14-row-alone"),
        pytest.param(["]}"], "opener first", id="W14-closer-alone"),
        pytest.param([OPENER, OPENER], "a change", id="W14-opener-twice"),
        pytest.param([OPENER, "," + change()], "a change", id="W14-first-comma"),
        pytest.param([OPENER, change(), change()], "a comma", id="W14-no-comma"),
        pytest.param([OPENER, "]}", "]}"], "opener first", id="W14-closer-twice"),
        pytest.param([transaction("[]")], "an opener", id="whole-in-chunks"),
    ],
)
def test_fault_of_chunks_is_named(texts: list[str], expected: str) -> None:
    assert expected in fault(*texts, first_format=True, chunks=True).expected


@pytest.mark.parametrize("chunks", [False, True])
@pytest.mark.parametrize("space", ["", "\n\t\t"])
def test_a_comma_before_a_message_between_transactions_is_passed_over(
    space: str, chunks: bool
) -> None:
    """wal2json counts the changes of the transaction before it."""
    item = '{"kind":"message","transactional":false,"prefix":",[{","content":"{\\"change\\":[,{"}'
    (found,) = feed(
        f'{{{space}"change":[{space},{item}{space}]}}', first_format=True, chunks=chunks
    )
    assert isinstance(found, LogicalMessage)
    assert (found.prefix, found.content) == (",[{", b'{"change":[,{')


@pytest.mark.parametrize(
    "changes", ["[,]", f"[,{change()}]", '[,,{"kind":"message","transactional":false}]']
)
def test_any_other_stray_comma_is_a_fault(changes: str) -> None:
    error = fault(f'{{"change":{changes}}}', first_format=True)
    assert (error.expected[:4], error.offset) == ("JSON", 11)


def test_chunks_make_one_transaction() -> None:
    begin, _, *rows, commit = feed(
        OPENER, change(), "," + change(values="[2]"), "]}", first_format=True, chunks=True
    )
    assert isinstance(begin, Begin)
    assert [row.new for row in rows] == [("1",), ("2",)]
    assert isinstance(commit, Commit)
    assert (commit.end_lsn, commit.xid) == (0x20, 7)
