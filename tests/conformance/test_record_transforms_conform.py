"""Kafka Connect's transforms, as we have them, keep the kit's promises."""

import pytest

from waltap_testing.record_transform_suite import RecordTransformRig, RecordTransformSuite
from waltap_transforms.connect import CONNECT

SPECS = {spec.name: spec for spec in CONNECT}
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
CASES = {
    **{f"{name}-key": given for name, given in SIDES.items()},
    **{f"{name}-value": VALUES.get(name, given) for name, given in SIDES.items()},
    "drop-headers": {"headers": "__debezium.newkey"},
    "drop-records": {},
    "insert-header": {"header": "site", "value.literal": "[1, 2.5]"},
    "regex-router": {"regex": r"server\.(.*)", "replacement": "$1"},
    "timestamp-router": {"topic.format": "${timestamp}.${topic}"},
    "value-to-key": {"fields": "op"},
}
STAMPED = {"timestamp-router"}
"""They are for records with a timestamp, which only other transforms give."""


class TestConnect(RecordTransformSuite):
    @pytest.fixture(params=sorted(CASES))
    def rig(self, request):
        spec, given = SPECS[request.param], CASES[request.param]
        properties = None if spec.properties is None else spec.properties.model_validate(given)
        rig = RecordTransformRig(spec, properties)
        if request.param in STAMPED:
            for number, record in enumerate(rig.records):
                record.timestamp = 1_767_225_600_000 + 86_400_000 * number
        return rig


def test_every_transform_of_connects_is_here():
    assert set(CASES) == set(SPECS)
