"""Every transform of ours keeps the kit's promises: of changes, of events, and of records as Kafka Connect and Debezium
have them."""

import pytest
from tests.harness.change_records import outbox_records

import waltap.plugin
from waltap.ports.specs import SourceTransformSpec
from waltap_testing.suites.record_transform import RecordTransformRig, RecordTransformSuite
from waltap_testing.suites.transform import (
    EventTransformRig,
    EventTransformSuite,
    TransformRig,
    TransformSuite,
)
from waltap_transforms.connect import CONNECT
from waltap_transforms.debezium import DEBEZIUM

SPECS = {spec.name: spec for spec in waltap.plugin.register_transforms()}
CASES = {
    "a table left out": ("filter", {"tables": r"public\.notes"}),
    "an operation left out": ("filter", {"operations": "u,t"}),
    "everything left out": ("filter", {"tables": ".*"}),
    "one table elsewhere": ("route", {"regex": r"public\.(i.*)", "replacement": "all.$1"}),
    "no table elsewhere": ("route", {"regex": r"other\.x", "replacement": "y"}),
}


class TestTransforms(TransformSuite):
    @pytest.fixture(params=list(CASES))
    def rig(self, request):
        name, given = CASES[request.param]
        properties = SPECS[name].properties.model_validate(given)
        return TransformRig(SPECS[name], properties)


EVENT_CASES = {
    "nothing changed": ("fields", {}),
    "a field left out": ("fields", {"exclude": "name,serial"}),
    "a field renamed": ("fields", {"renames": "name:title", "tables": r"public\.items"}),
}


class TestEventTransforms(EventTransformSuite):
    @pytest.fixture(params=list(EVENT_CASES))
    def rig(self, request):
        name, given = EVENT_CASES[request.param]
        properties = SPECS[name].properties.model_validate(given)
        return EventTransformRig(SPECS[name], properties)


def test_every_registered_transform_is_here():
    asks_the_source = {
        name for name, spec in SPECS.items() if isinstance(spec, SourceTransformSpec)
    }
    assert asks_the_source == {"reselect-columns"}, "they are tested with a server"
    here = {name for name, _ in [*CASES.values(), *EVENT_CASES.values()]}
    assert set(SPECS) == here | asks_the_source


# --- of records ----------------------------------------------------------------------------------

SIDES = {
    "cast": {"spec": "id:string,ts_ms:float64,op:string"},
    "extract-field": {"field": "id"},
    "flatten": {"delimiter": "_"},
    "header-from": {"fields": "id,id", "headers": "a,b", "operation": "copy"},
    "hoist-field": {"field": "whole"},
    "insert-field": {"static.field": "site", "static.value": "north", "topic.field": "topic!"},
    "mask-field": {"fields": "id,op"},
    "replace-field": {"exclude": "ts_us,ts_ns", "renames": "id:number"},
    "set-schema-metadata": {"schema.name": "n", "schema.version": "7"},
    "timestamp-converter": {"field": "ts_ms", "target.type": "Timestamp"},
}
VALUES = {
    "extract-field": {"field": "source.lsn", "field.syntax.version": "V2"},
    "header-from": {"fields": "op,ts_ms", "headers": "a,b", "operation": "move"},
}
CONNECT_CASES = {
    **{f"{name}-key": given for name, given in SIDES.items()},
    **{f"{name}-value": VALUES.get(name, given) for name, given in SIDES.items()},
    "drop-headers": {"headers": "__debezium.newkey"},
    "drop-records": {},
    "insert-header": {"header": "site", "value.literal": "[1, 2.5]"},
    "regex-router": {"regex": r"server\.(.*)", "replacement": "$1"},
    "timestamp-router": {"topic.format": "${timestamp}.${topic}"},
    "value-to-key": {"fields": "op"},
}
DEBEZIUM_CASES = {
    "activate-tracing-span": {},
    "by-logical-table-router": {"topic.regex": "(.*)", "topic.replacement": "all.$1"},
    "collection-name": {"collection.naming.style": "camel_case"},
    "content-based-router": {"topic.expression": "has(value.op) ? value.op : null"},
    "decode-message-content": {},
    "enforce-record-size": {"max.bytes": "1", "min.field.size": "0"},
    "event-router": {"table.fields.additional.placement": "n:envelope,kind:header"},
    "extract-changed-record-state": {"header.changed.name": "changed"},
    "extract-new-record-state": {
        "delete.tombstone.handling.mode": "rewrite-with-tombstone",
        "add.fields": "op,lsn",
        "add.headers": "op",
    },
    "extract-schema": {},
    "field-name": {"column.naming.style": "UPPER_CASE", "column.naming.prefix": "c_"},
    "geometry-format": {},
    "header-to-value": {
        "headers": "__debezium.context.taskId",
        "fields": "task",
        "operation": "move",
    },
    "openlineage": {},
    "partition-routing": {"partition.payload.fields": "source.table", "partition.topic.num": "5"},
    "read-to-insert": {},
    "record-filter": {"condition": "!has(value.op) || value.op != 'd'"},
    "schema-change-filter": {"schema.change.event.exclude.list": "ALTER"},
    "swap-geometry-coordinates": {},
    "timescaledb": {"schema.list": "shop"},
    "timezone-converter": {"converted.timezone": "Asia/Tokyo"},
    "vector-to-json": {},
}
STAMPED = {"timestamp-router"}
"""They are for records with a timestamp, which only other transforms give."""
RECORDS = {spec.name: spec for spec in (*CONNECT, *DEBEZIUM)}
RECORD_CASES = {**CONNECT_CASES, **DEBEZIUM_CASES}


class TestRecordTransforms(RecordTransformSuite):
    @pytest.fixture(params=sorted(RECORD_CASES))
    def rig(self, request):
        spec, given = RECORDS[request.param], RECORD_CASES[request.param]
        properties = None if spec.properties is None else spec.properties.model_validate(given)
        if request.param == "event-router":
            return RecordTransformRig(spec, properties, outbox_records(1, 30))
        rig = RecordTransformRig(spec, properties)
        for number, record in enumerate(rig.records if request.param in STAMPED else ()):
            record.timestamp = 1_767_225_600_000 + 86_400_000 * number
        return rig


def test_every_transform_of_records_is_here():
    assert len(RECORDS) == len(CONNECT) + len(DEBEZIUM)
    assert set(RECORD_CASES) == set(RECORDS)
