"""Debezium's transforms, as we have them, keep the kit's promises."""

import pytest
from tests.harness.change_records import outbox_records

from waltap_testing.record_transform_suite import RecordTransformRig, RecordTransformSuite
from waltap_transforms.debezium import DEBEZIUM

SPECS = {spec.name: spec for spec in DEBEZIUM}
CASES = {
    "activate-tracing-span": {},
    "by-logical-table-router": {"topic.regex": "(.*)", "topic.replacement": "all.$1"},
    "content-based-router": {"topic.expression": "has(value.op) ? value.op : null"},
    "decode-message-content": {},
    "event-router": {"table.fields.additional.placement": "n:envelope,kind:header"},
    "extract-changed-record-state": {"header.changed.name": "changed"},
    "extract-new-record-state": {
        "delete.tombstone.handling.mode": "rewrite-with-tombstone",
        "add.fields": "op,lsn",
        "add.headers": "op",
    },
    "extract-schema": {},
    "geometry-format": {},
    "header-to-value": {
        "headers": "__debezium.context.taskId",
        "fields": "task",
        "operation": "move",
    },
    "partition-routing": {"partition.payload.fields": "source.table", "partition.topic.num": "5"},
    "record-filter": {"condition": "!has(value.op) || value.op != 'd'"},
    "schema-change-filter": {"schema.change.event.exclude.list": "ALTER"},
    "swap-geometry-coordinates": {},
    "timezone-converter": {"converted.timezone": "Asia/Tokyo"},
    "vector-to-json": {},
}


class TestDebezium(RecordTransformSuite):
    @pytest.fixture(params=sorted(CASES))
    def rig(self, request):
        spec, given = SPECS[request.param], CASES[request.param]
        properties = None if spec.properties is None else spec.properties.model_validate(given)
        if request.param == "event-router":
            return RecordTransformRig(spec, properties, outbox_records(1, 30))
        return RecordTransformRig(spec, properties)


def test_every_transform_of_debeziums_is_here():
    assert set(CASES) == set(SPECS)
