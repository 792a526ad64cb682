"""What waltap's transforms of records give against what Debezium's give of the same records."""

import os
from typing import Any

import msgspec
import pytest
from tests.differential.transforms import Question, ask, written
from tests.harness.change_records import change_records, outbox_records, transform

from waltap.changes.mapping.connect_schema import ConnectKind
from waltap.encoders.format.record_transform import ConnectRecord

SEEDS = range(int(os.environ.get("WALTAP_SEEDS", "2")))
DEBEZIUM = "io.debezium.transforms."

MAY_FAIL = ("header-to-value", "swap-geometry-coordinates")
"""Transforms whose records count up to the first one at which Debezium fails."""


def difference(ours: Any, theirs: Any) -> str:
    """Return where two values differ first, and how."""
    if type(ours) is type(theirs) and isinstance(ours, list | tuple) and len(ours) == len(theirs):
        for number, pair in enumerate(zip(ours, theirs, strict=True)):
            if pair[0] != pair[1]:
                name = ours[0] if len(ours) == 2 and isinstance(ours[0], str) else number
                return f".{name}{difference(*pair)}"
    return f": {ours!r:.300} is not {theirs!r:.300}"


MODE = "delete.tombstone.handling.mode"
MODES = ("drop", "tombstone", "rewrite", "rewrite-with-tombstone", "delete-to-tombstone")
ADDED = {
    "add.fields": "op,table,source.ts_ms, transaction.total_order:nr,lsn:LSN,absent,ts_us",
    "add.headers": "op,id,source.snapshot:marker,db",
}
PLACED = "table.fields.additional.placement"
COLUMNS = "kind:header,kind:header:again,n:partition,at:envelope:seen,kind:envelope"
SHARDS = {"topic.regex": r"(.*)\.t\d", "topic.replacement": "$1.all"}
TRANSFORMS: list[tuple[str, str, list[dict[str, str]]]] = [
    (
        "extract-new-record-state",
        "ExtractNewRecordState",
        [
            *({MODE: mode, **added} for added in ({}, ADDED) for mode in MODES),
            {MODE: "rewrite", "replace.null.with.default": "false"},
            {"route.by.field": "kind", MODE: "rewrite"},
            {
                "add.fields": "op",
                "add.fields.prefix": "",
                "add.headers": "op",
                "add.headers.prefix": "h.",
            },
            *(
                {
                    "drop.fields.header.name": "Dropped",
                    "drop.fields.from.key": from_key,
                    "drop.fields.keep.schema.compatible": compatible,
                    MODE: mode,
                }
                for from_key in ("true", "false")
                for compatible in ("true", "false")
                for mode in ("tombstone", "rewrite")
            ),
        ],
    ),
    (
        "event-router",
        "outbox.EventRouter",
        [
            {},
            {"route.topic.regex": "(.)(.*)", "route.topic.replacement": "x.$2.$1"},
            {"route.topic.regex": "or(?<rest>.*)", "route.topic.replacement": "o.${rest}"},
            {"route.by.field": "kind", "table.field.event.key": "id"},
            {PLACED: "kind:header:eventType,n:partition"},
            {PLACED: COLUMNS},
            {PLACED: COLUMNS, "table.field.event.schema.version": "n"},
            {"table.field.event.schema.version": "absent"},
            {
                PLACED: "absent:header,absent:envelope,n:envelope",
                "table.field.additional.missing": "ignore",
            },
            {"table.field.event.timestamp": "at"},
            {"route.tombstone.on.empty.payload": "true", "table.op.invalid.behavior": "error"},
            {"table.expand.json.payload": "true"},
            {
                "table.expand.json.payload": "true",
                "table.json.payload.null.behavior": "optional_bytes",
                PLACED: "n:envelope",
                "field.name.adjustment.mode": "avro",
            },
        ],
    ),
    (
        "by-logical-table-router",
        "ByLogicalTableRouter",
        [
            SHARDS,
            {**SHARDS, "key.enforce.uniqueness": "false", "schema.name.adjustment.mode": "avro"},
            {
                **SHARDS,
                "key.field.name": "shard",
                "key.field.regex": r"(.*)\.t([12])",
                "key.field.replacement": "$2",
            },
            {"topic.regex": ".*t0()", "topic.replacement": "$1"},
            {"topic.regex": "server(.*?)(0|1)?", "topic.replacement": "x$1-$2"},
        ],
    ),
    (
        "extract-changed-record-state",
        "ExtractChangedRecordState",
        [{}, {"header.changed.name": "Dropped", "header.unchanged.name": "Same"}],
    ),
    (
        "header-to-value",
        "HeaderToValue",
        [
            {"headers": "Dropped", "fields": "dropped", "operation": "move"},
            {
                "headers": "Dropped,__debezium.context.taskId",
                "fields": "source.dropped,task",
                "operation": "copy",
            },
            {"headers": "Dropped", "fields": "new.dropped", "operation": "MOVE"},
            {"headers": "absent", "fields": "x", "operation": "copy"},
        ],
    ),
    (
        "partition-routing",
        "partitions.PartitionRouting",
        [
            {
                "partition.payload.fields": "change.kind, change.c0,source.lsn,absent.x,change.c2",
                "partition.topic.num": "7",
            },
            {
                "partition.payload.fields": "op,change.kind,change.c1,source.txId,ts_ms",
                "partition.topic.num": "1000",
                "partition.hash.function": "murmur",
            },
            {"partition.payload.fields": "absent", "partition.topic.num": "3"},
        ],
    ),
    (
        "timezone-converter",
        "TimezoneConverter",
        [
            {"converted.timezone": "America/Sao_Paulo"},
            {"converted.timezone": "+05:30"},
            {"converted.timezone": "Europe/Vienna", "include.list": "source:t0"},
            {
                "converted.timezone": "Europe/Vienna",
                "include.list": "source:t0:c1,t0:source.ts_us,t0:before.c2,t1:c0",
            },
            {"converted.timezone": "Asia/Tokyo", "include.list": "topic:server.shop.t1"},
            {"converted.timezone": "Asia/Tokyo", "exclude.list": "t1:c0,t0"},
        ],
    ),
    ("vector-to-json", "VectorToJsonConverter", [{}]),
    ("read-to-insert", "io.debezium.connector.mysql.transforms.ReadToInsertEvent", [{}]),
    ("swap-geometry-coordinates", "SwapGeometryCoordinates", [{}, {"srids": "4326,1"}]),
    ("geometry-format", "GeometryFormatTransformer", [{}, {"format": "ewkb"}]),
    (
        "enforce-record-size",
        "EnforceRecordSize",
        [
            {"max.bytes": "1"},
            {"max.bytes": "2500", "min.field.size": "0"},
            {"max.bytes": "3000", "min.field.size": "200"},
            {"max.bytes": "9000", "min.field.size": "100", "compression.ratio": "2.5"},
            {"max.bytes": "100000", "min.field.size": "0"},
        ],
    ),
]
"""Our name, Debezium's, and configurations."""


@pytest.mark.usefixtures("peer")
@pytest.mark.parametrize(("name", "theirs", "configs"), TRANSFORMS, ids=[t[0] for t in TRANSFORMS])
def test_records_are_those_of_debezium(
    name: str, theirs: str, configs: list[dict[str, str]]
) -> None:
    """Put the records of every seed through both with every configuration."""
    runs = [(seed, config, records_for(name, seed)) for seed in SEEDS for config in configs]
    java = theirs if "io." in theirs else DEBEZIUM + theirs
    answers = ask(Question(java=java, config=config, records=some) for _, config, some in runs)
    assert len(answers) == len(runs)
    wrong, compared = [], 0
    for (seed, config, records), answer in zip(runs, answers, strict=True):
        where = f"{java}, seed {seed}, {config}"
        assert name in MAY_FAIL or answer.error is None, f"{where}: {answer.error}"
        taken = len(records) if answer.taken is None else answer.taken
        made, half = transform(name, **config), taken // 2
        found = [
            written(each)
            for some in (records[:half], records[half:taken])
            for each in (made(some) if some else [])
        ]
        if len(found) != len(answer.records):
            wrong.append(f"{where}: {len(found)} records, not {len(answer.records)}")
        for number, pair in enumerate(zip(found, answer.records, strict=False)):
            compared += 1
            if pair[0] != pair[1]:
                wrong.append(f"{where}: record {number}{difference(*pair)}")
    assert not wrong, f"{len(wrong)}:\n" + "\n".join(wrong[:5])
    assert compared > len(runs)


def records_for(name: str, seed: int) -> list[ConnectRecord]:
    """Return records that mean the same to both sides of the transform ``name``."""
    if name == "event-router":
        return outbox_records(seed, 25)
    records = change_records(seed, 25)
    if name in ("partition-routing", "extract-changed-record-state"):
        return [each for each in records if hashable(each)]
    if name == "enforce-record-size":
        return [long(each, seed) for each in records if cuttable(each)]
    if name == "geometry-format":
        return [each for each in records if of_one_form(each, extended=seed % 2 == 0)]
    return records


def hashable(record: ConnectRecord) -> bool:
    """Return whether Java's hashes of the row are the same in every run: structs have others, as have arrays of
    bytes, which are not equal to one another either (Debezium's own are buffers, which are)."""
    schema = record.value_schema
    if schema is None or not (schema.name or "").endswith(".Envelope"):
        return True
    kinds = {field.name: field.schema for field in schema.fields[0].schema.fields}
    return not any(
        (each.kind is ConnectKind.BYTES and each.name is None) or each.kind is ConnectKind.STRUCT
        for each in kinds.values()
    )


def cuttable(record: ConnectRecord) -> bool:
    """Return whether Debezium can look for what to cut: it expects buffers, and fails on decimals, and on the
    arrays of bytes that it has here."""
    schema = record.value_schema
    if record.value is None or schema is None or schema.fields[0].name != "before":
        return True
    columns = schema.fields[0].schema.fields
    return not any(column.schema.kind is ConnectKind.BYTES for column in columns)


def long(record: ConnectRecord, seed: int) -> ConnectRecord:
    """Return a record whose texts are long, outside of a transaction with metadata. Half a character
    of two UTF-16 units would not come back from Java as it is."""
    if record.value is None or "before" not in record.value:
        return record
    rows = {
        side: row
        and {
            name: longer(value, 60 + 7 * (seed + number) % 500)
            for number, (name, value) in enumerate(row.items())
        }
        for side, row in record.value.items()
        if side in ("before", "after")
    }
    return msgspec.structs.replace(record, value={**record.value, **rows, "transaction": None})


def longer(value: Any, times: int) -> Any:
    return value.replace("\U0001f600", "é") * times if isinstance(value, str) else value


def of_one_form(record: ConnectRecord, *, extended: bool) -> bool:
    """Return whether all geometries of a record are in WKB, or all extended: behind an extended one Debezium
    converts no plain ones any more."""
    rows = [record.value.get(side) for side in ("before", "after")] if record.value else []
    found = [
        bool(value["wkb"][1 if value["wkb"][0] == 0 else 4] & 0x20)
        for row in rows
        for value in (row or {}).values()
        if isinstance(value, dict) and "wkb" in value
    ]
    return all(each is extended for each in found)
