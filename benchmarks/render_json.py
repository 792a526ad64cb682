"""Cost of rendering JSON records, and Avro's beside them, per row: one core, tuples already decoded.

    python benchmarks/render_json.py [--rows N] [--json FILE]

The table has 12 mixed columns. Each figure is the best of five runs over one batch; where it says "new
rows", each run has others, so that nothing that is kept of values helps.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.decode.message import Change, Delete, Insert, OldTuple, Update
from waltap.changes.decode.relation import Column, DataType, Relation
from waltap.changes.decode.tuple_image import ABSENT, Tuple
from waltap.changes.mapping.connect_schema import Schema
from waltap.changes.mapping.type_registry import TypeRegistry
from waltap.changes.transactions.transaction import Heartbeat, SnapshotRows, TransactionPart
from waltap.encoders.format.converted import ConvertedFormat, RecordConverters
from waltap.encoders.format.converter import ConverterContext, RecordPart
from waltap.encoders.format.format import Format, FormatContext
from waltap.encoders.json.format import JsonFormat
from waltap.encoders.json.lines import JsonLines
from waltap.encoders.json.properties import JsonProperties
from waltap_formats.avro.converter import AvroConverter
from waltap_formats.properties import AvroProperties
from waltap_postgres.identity import REPLICA_IDENTITIES
from waltap_postgres.types import TYPE_SPECS

COLUMNS = (
    ("id", "int8", 20, -1, False),
    ("quantity", "int4", 23, -1, True),
    ("name", "text", 25, -1, False),
    ("note", "text", 25, -1, True),
    ("price", "numeric", 1700, ((10 << 16) | 2) + 4, True),
    ("active", "bool", 16, -1, True),
    ("created", "timestamp", 1114, -1, True),
    ("updated", "timestamptz", 1184, -1, True),
    ("day", "date", 1082, -1, True),
    ("ratio", "float8", 701, -1, True),
    ("ref", "uuid", 2950, -1, True),
    ("doc", "jsonb", 3802, -1, True),
)
IDENTITIES = {spec.letter: spec.factory for spec in REPLICA_IDENTITIES}
RUNS = 5

Part = TransactionPart | SnapshotRows | Heartbeat


def relation(identity: str) -> Relation:
    """Return the table with a replica identity."""
    return Relation(
        oid=16384 + ord(identity),
        schema="public",
        table="items",
        identity=identity,
        primary_key=("id",),
        columns=tuple(
            Column(
                name=name,
                type_oid=oid,
                typmod=typmod,
                nullable=nullable,
                in_identity=name == "id" or identity == "f",
                data_type=DataType(oid=oid, schema="pg_catalog", name=type_name),
            )
            for name, type_name, oid, typmod, nullable in COLUMNS
        ),
    )


def row(n: int) -> Tuple:
    """Return a row as text; every tenth has a NULL."""
    return (
        str(n),
        str(n % 1000),
        f"item number {n}",
        None if n % 10 == 0 else f"a note that says something about item {n}",
        f"{n % 100000}.{n % 100:02}",
        "t" if n % 2 else "f",
        f"2024-02-{n % 28 + 1:02} 12:34:{n % 60:02}.{n % 1000000:06}",
        f"2024-03-{n % 28 + 1:02} 01:02:{n % 60:02}.{n % 1000000:06}+00",
        f"2024-01-{n % 28 + 1:02}",
        f"{n % 997}.25",
        f"0b5f1a2c-3d4e-4f60-8a7b-{n:012x}",
        f'{{"k": {n}, "tags": ["a", "b"], "text": "some \\"text\\""}}',
    )


def json_format(
    *, schemas: bool = False, properties: Mapping[str, str] = MappingProxyType({})
) -> JsonFormat:
    """Return a format in its default modes."""
    wanted = {f"{part}.converter.schemas.enable": schemas for part in ("key", "value")}
    return JsonFormat(JsonProperties.model_validate(wanted), format_context(properties))


def format_context(properties: Mapping[str, str] = MappingProxyType({})) -> FormatContext:
    """Return what a format may know."""
    capture = CaptureProperties.model_validate({"topic.prefix": "bench", **properties})
    return FormatContext(
        describe=lambda given: given,
        identity=lambda given: IDENTITIES[given.identity](given),
        capture=CaptureRules(capture),
        database="bench",
        run_id="11111111-2222-3333-4444-555555555555",
        mapper=lambda options: TypeRegistry(TYPE_SPECS, options),
    )


class Unregistered(AvroConverter):
    """Avro without a registry."""

    def prefix(self, topic: str, schema: Schema) -> bytes:
        """Return any id."""
        return b"\0\0\0\0\1"


def avro_format() -> ConvertedFormat:
    """Return Avro for keys and values."""

    def record_part(name: RecordPart) -> Unregistered:
        given = {"schema.registry.url": "http://none"}
        return Unregistered(
            AvroProperties.model_validate(given), ConverterContext(record_part=name)
        )

    key, value = record_part("key"), record_part("value")
    return ConvertedFormat(RecordConverters(key=key, value=value, header=value), format_context())


def parts(changes: Sequence[Change], per_transaction: int) -> list[Part]:
    """Return ``changes`` as transactions."""
    out: list[Part] = []
    for at in range(0, len(changes), per_transaction):
        some = changes[at : at + per_transaction]
        out.append(
            TransactionPart(
                xid=700 + at,
                begin_lsn=some[0].lsn,
                commit_lsn=some[-1].lsn + 40,
                commit_ts=1_700_000_000_123_456 + at,
                end_lsn=some[-1].lsn + 88,
                previous_end_lsn=some[0].lsn - 32,
                changes=list(some),
            )
        )
    return out


def best(work: Callable[[], object], rows: int) -> float:
    """Return the least microseconds per row."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times) / rows * 1e6


def side_by_side(
    formats: Mapping[str, Format], relation_: Relation, count: int
) -> dict[str, float]:
    """Return the microseconds per row of each format, for inserts of rows that come once."""
    found = dict.fromkeys(formats, float("inf"))
    for run in range(2 * RUNS):
        numbers = range((run + 1) * count, (run + 2) * count)
        some = parts([Insert(relation_, 0x81000000 + 200 * n, row(n)) for n in numbers], 1000)
        for name in formats if run % 2 else reversed(list(formats)):
            start = time.perf_counter()
            formats[name].render(some, 1_700_000_000_000_000_000)
            found[name] = min(found[name], (time.perf_counter() - start) / count * 1e6)
    return {f"insert of new rows, {name}": round(time_, 2) for name, time_ in found.items()}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=8192)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    count, now = options.rows, time.time_ns()
    plain, full = relation("d"), relation("f")
    rows = [row(n) for n in range(count)]
    lsns = [0x1000000 + 200 * n for n in range(count)]
    key_only = [(r[0], *[ABSENT] * (len(COLUMNS) - 1)) for r in rows]
    inserts = [Insert(plain, lsn, r) for lsn, r in zip(lsns, rows, strict=True)]
    updates = [Update(plain, lsn, r) for lsn, r in zip(lsns, rows, strict=True)]
    full_updates = [
        Update(full, lsn, r, r, OldTuple.FULL) for lsn, r in zip(lsns, rows, strict=True)
    ]
    deletes = [Delete(plain, lsn, r, OldTuple.KEY) for lsn, r in zip(lsns, key_only, strict=True)]
    alternating = [
        change for three in zip(inserts, updates, deletes, strict=True) for change in three
    ]
    snapshot = [SnapshotRows(relation=plain, rows=rows, ts=now // 1000, lsn=lsns[0], xid=700)]
    bare, wrapped = json_format(), json_format(schemas=True)
    counted = json_format(properties={"provide.transaction.metadata": "true"})
    records = bare.render(parts(inserts, 1000), now)
    lines = JsonLines()
    cases: dict[str, Callable[[], object]] = {
        "insert, 1000 rows a transaction": lambda: bare.render(parts(inserts, 1000), now),
        "insert, 1 row a transaction": lambda: bare.render(parts(inserts, 1), now),
        "insert, with schemas": lambda: wrapped.render(parts(inserts, 1000), now),
        "insert, with transaction metadata": lambda: counted.render(parts(inserts, 1000), now),
        "snapshot row": lambda: bare.render(list(snapshot), now),
        "update, DEFAULT": lambda: bare.render(parts(updates, 1000), now),
        "update, FULL": lambda: bare.render(parts(full_updates, 1000), now),
        "delete and tombstone, DEFAULT": lambda: bare.render(parts(deletes, 1000), now),
        "insert, update, delete in turn": lambda: bare.render(parts(alternating[:count], 90), now),
        "record to line": lambda: lines.lines(records),
    }
    result = {name: round(best(work, count), 2) for name, work in cases.items()}
    result |= side_by_side({"JSON": bare, "Avro": avro_format()}, plain, count)
    size = sum(len(r.key or b"") + len(r.value or b"") for r in records) / count
    print(f"{count} rows of {len(COLUMNS)} columns, {size:.0f} bytes a record; µs per row")
    for name, figure in result.items():
        print(f"  {name:36} {figure:6.2f}")
    if options.json:
        stamp = {"python": platform.python_version(), "machine": platform.machine()}
        text = json.dumps({"microseconds_per_row": result, **stamp}, indent=2)
        options.json.write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
