"""wal2json and decoderbufs against encoders of their own: rows come back, damage never does."""

import json
import math
import struct
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waltap.decode import UNCHANGED, Insert
from waltap.errors import DecodeError
from waltap_decoders.decoderbufs.floats import float4_text, float8_text
from waltap_decoders.decoderbufs.moments import timestamp_text

from tests.harness import decoderbufs_wire as wire
from tests.harness.captures import EmptyCatalogue, decoderbufs, wal2json

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=60)
NAMES = st.text(
    st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=12
)
DIGITS = st.from_regex(r"-?(0|[1-9][0-9]{0,40})(\.[0-9]{1,40})?", fullmatch=True).filter(
    lambda digits: digits != "-0"
)


def escaped(text: str) -> str:
    """Write a string as wal2json does: everything but quotes, backslash and control is raw."""
    return json.dumps(text, ensure_ascii=False)


# (type OID, value as the server prints it, the same as JSON)
JSON_CELLS = st.one_of(
    TEXT.map(lambda text: (25, text, escaped(text))),
    st.binary(max_size=20).map(lambda data: (17, "\\x" + data.hex(), f'"{data.hex()}"')),
    st.booleans().map(lambda flag: (16, "t" if flag else "f", "true" if flag else "false")),
    st.integers(-(2**63), 2**63 - 1).map(lambda number: (20, str(number), str(number))),
    DIGITS.map(lambda digits: (1700, digits, digits)),
    st.sampled_from([20, 25, 16, 1700, 70000]).map(lambda oid: (oid, None, "null")),
)
JSON_ROWS = st.lists(st.tuples(NAMES, JSON_CELLS), max_size=8, unique_by=lambda pair: pair[0])


def action(row) -> str:
    columns = ",".join(
        f'{{"name":{escaped(name)},"typeoid":{oid},"value":{value}}}'
        for name, (oid, _, value) in row
    )
    head = '"xid":7,"timestamp":null,"origin":0,"lsn":"0/10"'
    return f'{{"action":"I",{head},"schema":"s","table":"t","columns":[{columns}]}}'


BEGIN = b'{"action":"B","xid":7,"timestamp":null,"origin":0,"lsn":"0/10","nextlsn":"0/20"}'


@given(JSON_ROWS)
def test_wal2json_rows_come_back_as_the_server_printed_them(row) -> None:
    decoder = wal2json(catalogue=EmptyCatalogue())
    frames = [(1, BEGIN), *[(2, action(row).encode())] * 2]
    rows = [m for m in decoder.feed(frames) if isinstance(m, Insert)]
    assert [m.new for m in rows] == [tuple(text for _, (_, text, _) in row)] * 2
    assert [c.name for c in rows[0].relation.columns] == [name for name, _ in row]


@given(JSON_ROWS, st.data())
def test_cut_wal2json_is_an_error(row, data) -> None:
    payload = action(row).encode()
    kept = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(DecodeError):
        wal2json(catalogue=EmptyCatalogue()).feed([(1, BEGIN), (2, payload[:kept])])


@given(st.lists(st.tuples(NAMES, JSON_CELLS), min_size=1, max_size=6, unique_by=lambda p: p[0]))
def test_format_1_says_what_format_2_says(row) -> None:
    names = ",".join(escaped(name) for name, _ in row)
    oids = ",".join(str(oid) for _, (oid, _, _) in row)
    values = ",".join(value for _, (_, _, value) in row)
    text = (
        '{"xid":7,"nextlsn":"0/20","timestamp":"2024-01-01 00:00:00+00","origin":0,"change":['
        f'{{"kind":"insert","schema":"s","table":"t","columnnames":[{names}],'
        f'"columntypeoids":[{oids}],"columnvalues":[{values}]}}]}}'
    )
    messages = wal2json("1", catalogue=EmptyCatalogue()).feed([(1, text.encode())])
    (insert,) = (m for m in messages if isinstance(m, Insert))
    assert insert.new == tuple(text for _, (_, text, _) in row)


# (type OID, field of the oneof, value as the server prints it)
DATUMS = st.one_of(
    TEXT.map(lambda text: (25, wire.text(text), text)),
    TEXT.map(lambda text: (70000, wire.raw(text), text)),
    st.binary(max_size=20).map(lambda data: (17, wire.raw(data), "\\x" + data.hex())),
    st.booleans().map(lambda flag: (16, wire.boolean(flag), "t" if flag else "f")),
    st.integers(-(2**31), 2**31 - 1).map(lambda n: (23, wire.int32(n), str(n))),
    st.integers(-(2**63), 2**63 - 1).map(lambda n: (20, wire.int64(n), str(n))),
    st.sampled_from([16, 20, 25, 701, 70000]).map(lambda oid: (oid, b"", None)),
    st.sampled_from([25, 70000]).map(lambda oid: (oid, wire.MISSING, UNCHANGED)),
)
PLAIN_NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,10}", fullmatch=True)
DATUM_ROWS = st.lists(
    st.tuples(PLAIN_NAMES, DATUMS), min_size=1, max_size=8, unique_by=lambda pair: pair[0]
)


@given(DATUM_ROWS)
def test_decoderbufs_rows_come_back_as_the_server_prints_them(row) -> None:
    payload = wire.insert(*(wire.datum(name, oid, field) for name, (oid, field, _) in row))
    decoder = decoderbufs(catalogue=EmptyCatalogue())
    messages = decoder.feed([(1, wire.begin()), (2, payload), (3, payload)])
    rows = [m.new for m in messages if isinstance(m, Insert)]
    assert rows == [tuple(text for _, (_, _, text) in row)] * 2


@given(DATUM_ROWS, st.data())
def test_cut_decoderbufs_is_an_error(row, data) -> None:
    """A frame cut between fields is still a message: the counts of what is left give it away."""
    payload = wire.insert(*(wire.datum(name, oid, field) for name, (oid, field, _) in row))
    kept = data.draw(st.integers(0, len(payload) - 1))
    with pytest.raises(DecodeError):
        decoderbufs(catalogue=EmptyCatalogue()).feed([(1, wire.begin()), (2, payload[:kept])])


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_doubles_are_printed_with_the_digits_that_give_them_back(value) -> None:
    text = float8_text(value)
    assert struct.pack("<d", float(text)) == struct.pack("<d", value)
    mantissa, _, exponent = text.partition("e")
    digits = mantissa.lstrip("-").replace(".", "").strip("0")
    assert len(digits) <= 17
    if value:
        assert bool(exponent) == (abs(Decimal(value)) >= Decimal(10) ** 15 or abs(value) < 1e-4)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_singles_are_printed_with_the_digits_that_give_them_back(value) -> None:
    text = float4_text(value)
    assert struct.pack("<f", float(text)) == struct.pack("<f", value)
    assert len(text.partition("e")[0].lstrip("-").replace(".", "").strip("0")) <= 9
    assert math.copysign(1, float(text)) == math.copysign(1, value)


@given(st.datetimes())
def test_timestamps_agree_with_the_calendar(moment) -> None:
    from datetime import datetime, timedelta

    micros = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    wanted = moment.isoformat(" ")
    assert timestamp_text(micros) == (wanted.rstrip("0") if "." in wanted else wanted)
