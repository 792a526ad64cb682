"""Records by columns against records by rows: random tables, values, defaults, modes, masks and keys.

Rows go the whole way: the server's messages, cut anywhere, to columns, to lines.
"""

import uuid
from datetime import date, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from tests.harness.json_events import COMMIT_TS, Server, format_context, json_format, part
from tests.harness.typed_records import UnregisteredAvro
from tests.property.test_copy import answer, filled, written

from waltap.changes.decode.message import Insert, InsertBlock
from waltap.changes.decode.relation import Column, DataType, Relation
from waltap.changes.decode.row_block import RowBlock
from waltap.changes.transactions.transaction import SnapshotRows
from waltap.encoders.format.converted import ConvertedFormat, RecordConverters
from waltap.encoders.format.converter import ValueUnfit
from waltap.encoders.format.record_block import RecordBlock
from waltap.encoders.json.lines import JsonLines
from waltap_postgres.replication.copy_buffer import CopyBuffer, HeadedRows
from waltap_postgres.snapshot.copy_pieces import copy_block, copy_rows
from waltap_testing.workload import insert_block

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=14)
NASTY = st.sampled_from(
    ['"', "\\", "\\N", "\t\n\r\b\f\v", "\x01", "\x7f\x80", "𝄞😀", "\u2028", "</"]
)
WORDS = TEXT | NASTY | st.lists(NASTY, max_size=4).map("".join)
PLACES = st.integers(-(10**9), 10**9)


def scaled(number: int, scale: int) -> str:
    whole = f"{abs(number):0{scale + 1}d}"
    point = f"{whole[:-scale]}.{whole[-scale:]}" if scale else whole
    return f"-{point}" if number < 0 else point


def stamp(micros: int) -> str:
    text = str(datetime(2000, 1, 1) + timedelta(microseconds=micros))
    return text.rstrip("0") if "." in text else text


DATES = st.dates(date(1, 1, 1), date(9999, 12, 31)).map(str) | st.sampled_from(
    ["infinity", "-infinity", "0044-03-15 BC", "10000-01-01", "5874897-12-31", "0001-01-01"]
)
STAMPS = st.integers(-(6 * 10**16), 2 * 10**17).map(stamp) | st.sampled_from(
    ["infinity", "-infinity", "4713-01-01 00:00:00 BC", "294276-12-31 23:59:59.999999"]
)
FLOATS = st.floats().map(repr).map(
    lambda text: {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)
) | st.sampled_from(["0", "-0", "1e+100", "1e-05", "123456789012345680", "4.35"])
LARGE = st.integers(-(10**40), 10**40)
TYPES: dict[str, tuple[int, list[int], st.SearchStrategy[str]]] = {
    "int2": (21, [-1], st.integers(-(2**15), 2**15 - 1).map(str)),
    "int4": (23, [-1], st.integers(-(2**31), 2**31 - 1).map(str)),
    "int8": (20, [-1], st.integers(-(2**63), 2**63 - 1).map(str)),
    "text": (25, [-1], WORDS),
    "varchar": (1043, [-1, 24], WORDS),
    "bool": (16, [-1], st.sampled_from(["t", "f"])),
    "numeric": (
        1700,
        [-1],
        st.builds(scaled, LARGE, st.integers(0, 9)) | st.sampled_from(["NaN", "Infinity", "0"]),
    ),
    "float8": (701, [-1], FLOATS),
    "float4": (700, [-1], st.sampled_from(["0", "-0", "1e-45", "3.4028235e+38", "NaN", "1.5"])),
    "date": (1082, [-1], DATES),
    "timestamp": (1114, [-1, 0, 3], STAMPS),
    "timestamptz": (1184, [-1, 0, 3, 6], STAMPS.map(lambda text: text if "inf" in text or "BC" in text else f"{text}+00")),
    "time": (1083, [-1, 3], st.sampled_from(["00:00:00", "23:59:59.999999", "24:00:00", "01:02:03.4"])),
    "timetz": (1266, [-1], st.sampled_from(["00:00:00+00", "23:59:59.9-15:59", "24:00:00+05:30"])),
    "interval": (1186, [-1], st.sampled_from(["1 day", "-1 mons +2 days 03:04:05.678", "00:00:00"])),
    "uuid": (2950, [-1], st.uuids().map(uuid.UUID.__str__)),
    "jsonb": (3802, [-1], WORDS.map(lambda text: '{"a": "' + text.replace('"', "") + '", "b": [1, null]}')),
    "bytea": (17, [-1], st.binary(max_size=9).map(lambda data: f"\\x{data.hex()}")),
    "inet": (869, [-1], st.sampled_from(["10.0.0.1", "::1/64"])),
    "bit": (1560, [1, 9], st.sampled_from(["0", "1"])),
}  # fmt: skip
DEFAULTS = {"int4": "7", "bool": "true", "numeric": "1.50", "text": "'longer than a null'::text"}
MODES = st.fixed_dictionaries(
    {},
    optional={
        "binary.handling.mode": st.sampled_from(["bytes", "base64", "base64-url-safe", "hex"]),
        "decimal.handling.mode": st.sampled_from(["precise", "double", "string"]),
        "time.precision.mode": st.sampled_from(
            ["adaptive", "adaptive_time_microseconds", "connect", "isostring", "nanoseconds"]
        ),
        "interval.handling.mode": st.sampled_from(["numeric", "string"]),
        "column.mask.with.5.chars": st.sampled_from([r"s\.t\.c1", r"s\.t\.c[2-9]"]),
        "column.mask.hash.SHA-256.with.salt.x": st.just(r"s\.t\.c2"),
        "column.truncate.to.3.chars": st.sampled_from([r"s\.t\.c3", r"s\.t\.c[1-9]"]),
        "column.exclude.list": st.sampled_from([r"s\.t\.c4", r"s\.t\.c[13]"]),
        "message.key.columns": st.sampled_from([r"s\.t:c1,id", r"s\.t:c2"]),
        "tombstones.on.delete": st.just("false"),
    },
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Relation, list[tuple[str | None, ...]]]:
    names = draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=6))
    columns = [column("id", "int4", -1, key=True)]
    cells: list[st.SearchStrategy[str | None]] = [TYPES["int4"][2]]
    for number, name in enumerate(names, 1):
        typmods = [((12 << 16) | 3) + 4, -1] if name == "numeric" else TYPES[name][1]
        typmod = draw(st.sampled_from(typmods))
        default = draw(st.sampled_from([None, DEFAULTS.get(name)]))
        columns.append(column(f"c{number}", name, typmod, key=False, default=default))
        values = TYPES[name][2]
        if name == "numeric" and typmod != -1:
            values = st.builds(scaled, PLACES, st.just(3)) | st.just("NaN")
        cells.append(values if draw(st.booleans()) else st.none() | values)
    relation = Relation(oid=1, schema="s", table="t", primary_key=("id",), columns=tuple(columns))
    return relation, draw(st.lists(st.tuples(*cells), min_size=1, max_size=7))


def column(
    name: str, type_name: str, typmod: int, *, key: bool, default: str | None = None
) -> Column:
    oid = TYPES[type_name][0]
    return Column(
        name=name,
        type_oid=oid,
        typmod=typmod,
        data_type=DataType(oid=oid, schema="pg_catalog", name=type_name),
        nullable=not key,
        in_identity=key,
        default=default,
    )


def as_columns(rows: list[tuple[str | None, ...]], cut: int) -> RowBlock | None:
    """Send ``rows`` as a server does; return them as columns."""
    data = answer(written([row]) for row in rows)
    buffer = CopyBuffer(len(data) - 23)  # full where the last row ends
    found = next(each for each in filled(buffer, data, [cut]) if isinstance(each, HeadedRows))
    assert len(found) == len(rows)
    width = len(rows[0])
    assert [row for some in copy_rows([found.plain()], width) for row in some] == rows
    return copy_block(found, width, len(found))


@given(
    tables(),
    MODES,
    st.booleans(),
    st.integers(1, 400),
    st.sampled_from(["true", "first", "first_in_data_collection"]),
    st.sampled_from(["true", "last", "last_in_data_collection"]),
)
def test_lines_by_columns_are_lines_by_rows(table, modes, schemas, cut, first, last):
    relation, rows = table
    block = as_columns(rows, cut)
    if block is None:  # with a \x01 beside a backslash: read row by row
        assert any("\x01" in (value or "") for row in rows for value in row)
        return
    assert list(block) == rows
    lines: list[bytes] = []
    enable = {f"{side}.converter.schemas.enable": str(schemas) for side in ("key", "value")}
    for form in (rows, block):
        server = Server()
        server.snapshot(relation, form, first if len(rows) > 1 else last, last)
        records = json_format({**modes, **enable}).render(server.parts, 4)
        if form is block:
            assert isinstance(records, RecordBlock)
        lines.append(b"".join(JsonLines().portions(records)))
    assert lines[0] == lines[1]
    assert lines[0].count(b"\n") == len(rows)


@given(tables(), MODES, st.booleans(), st.integers(0, 6), st.none() | st.integers(2, 9))
def test_lines_of_inserts_by_columns_are_lines_by_rows(table, modes, schemas, cut, previous):
    relation, rows = table
    inserts = [Insert(relation, 2**63 + 8 * n, row) for n, row in enumerate(rows)]
    enable = {f"{side}.converter.schemas.enable": str(schemas) for side in ("key", "value")}
    lines: list[bytes] = []
    for form in (inserts, insert_block(relation, inserts)):
        whole = structs.replace(part(previous_end_lsn=previous), changes=form)
        parts: Any = [some for some in whole.split(cut) if some.changes]
        records = json_format({**modes, **enable}).render(parts, 4)
        assert isinstance(records, RecordBlock) == (form is not inserts)
        lines.append(b"".join(JsonLines().portions(records)))
    assert lines[0] == lines[1]
    assert lines[0].count(b"\n") == len(rows)


@given(tables(), MODES, st.sampled_from([None, "c", "r"]), st.sampled_from([2**62, 9_990, 1]))
def test_avro_by_columns_is_avro_by_rows(table, modes, op, lsn):
    """A column is written at once, or value by value where one has an unusual form."""
    relation, few = table
    rows = [few[n % len(few)] for n in range(70)]
    inserts: Any = [Insert(relation, lsn + 7 * n, row) for n, row in enumerate(rows)]
    if op is not None:
        inserts = insert_block(relation, inserts)
    made: Any = structs.replace(part(), changes=inserts)
    if op == "r":
        assert isinstance(inserts, InsertBlock)
        made = SnapshotRows(relation=relation, rows=inserts.rows, ts=COMMIT_TS, lsn=lsn, xid=3)
    records: list[Any] = []
    for straight in (True, False):
        avro = UnregisteredAvro(straight=straight)
        converters = RecordConverters(key=avro, value=avro, header=avro)
        try:
            given = format_context({"topic.prefix": "t", **modes})
            records.append(ConvertedFormat(converters, given).render([made], 4))
        except ValueUnfit as error:
            records.append(str(error))
    assert records[0] == records[1]
