"""Conformance tests for transforms of records.

Subclass `RecordTransformSuite` and define the fixture ``rig``:

    class TestMyTransform(RecordTransformSuite):
        @pytest.fixture
        def rig(self):
            return RecordTransformRig(MY_SPEC, MyProperties())
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import pytest

from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.mapping import envelope
from waltap.changes.mapping.connect_schema import Schema
from waltap.encoders.format.converted import ConvertedFormat, RecordConverters
from waltap.encoders.format.converter import ConverterContext
from waltap.encoders.format.record_transform import (
    ConnectRecord,
    RecordTransform,
    RecordTransformContext,
    RecordUnfit,
)
from waltap.encoders.json.converter import JsonConverter, JsonConverterProperties
from waltap.ports.specs import RecordTransformSpec
from waltap_testing.installed import format_context
from waltap_testing.suite import RigSuite, assert_hidden_alike
from waltap_testing.suites.format import every_part
from waltap_testing.workload import NOW, life_of_a_row

CAPTURE = CaptureProperties.model_validate(
    {"topic.prefix": "server", "provide.transaction.metadata": True, "skipped.operations": "none"}
)
JSON = JsonConverter(JsonConverterProperties(), ConverterContext(record_part="value"))


def every_record() -> list[ConnectRecord]:
    """Return records of every kind that a pipeline makes.

    These are changes of every operation with tombstones, snapshot rows, transaction metadata, a
    logical message, a heartbeat and a notification.
    """
    made = ConvertedFormat(
        RecordConverters(key=JSON, value=JSON, header=JSON), format_context(CAPTURE)
    )
    reported = {
        "id": "1",
        "aggregate_type": "Initial Snapshot",
        "type": "STARTED",
        "additional_data": None,
        "timestamp": 1,
    }
    notification = ConnectRecord(
        "notified", envelope.NOTIFICATION_KEY, {"id": "1"}, envelope.NOTIFICATION_VALUE, reported
    )
    return [*made.records(every_part(), NOW), notification]


@dataclass(frozen=True, slots=True)
class RecordTransformRig:
    """The transform under test: its spec, and properties for its factory."""

    spec: RecordTransformSpec
    properties: object = None
    # Give your own records if the transform needs a special kind.
    records: Sequence[ConnectRecord] = field(default_factory=every_record)

    def build(self) -> RecordTransform:
        context = RecordTransformContext(label=self.spec.name, capture=CaptureRules(CAPTURE))
        return self.spec.factory(self.properties, context)


class RecordTransformSuite(RigSuite):
    """Rules for every transform of records.

    The contract is `waltap.encoders.format.record_transform`.
    """

    needs = "a RecordTransformRig"

    def test_no_records_stay_none(self, rig: RecordTransformRig) -> None:
        assert rig.build()([]) == []

    def test_a_record_that_is_unfit_has_an_error(self, rig: RecordTransformRig) -> None:
        # One record for each call: an error in a list would hide the following records.
        for record in rig.records:
            with contextlib.suppress(RecordUnfit):
                rig.build()([record])

    def test_it_is_for_some_records(self, rig: RecordTransformRig) -> None:
        assert _fit(rig), "every record is unfit: give the rig records that it is for"

    def test_records_come_out_in_a_list(self, rig: RecordTransformRig) -> None:
        """The output is a list of records."""
        found = rig.build()(list(_fit(rig)))
        assert type(found) is list
        assert all(type(each) is ConnectRecord for each in found)

    def test_what_comes_out_fits_its_schemas(self, rig: RecordTransformRig) -> None:
        """Output values fit their schemas: required fields are there."""
        for record in rig.build()(list(_fit(rig))):
            _written(record)

    def test_records_that_come_in_stay_as_they_are(self, rig: RecordTransformRig) -> None:
        """Input records do not change: other records share their values."""
        before = [repr(each) for each in rig.records]
        fit = _fit(rig)
        rig.build()(list(fit))
        assert [repr(each) for each in rig.records] == before

    def test_the_same_records_give_the_same(self, rig: RecordTransformRig) -> None:
        """Another transform object, as after a crash, returns equal records."""
        one, other = rig.build()(list(_fit(rig))), rig.build()(list(_fit(rig)))
        assert _plain(one) == _plain(other)

    def test_cutting_batches_otherwise_makes_no_difference(self, rig: RecordTransformRig) -> None:
        records, first_result = list(_fit(rig)), None
        for most in (len(records), 1, 3):
            transform, found = rig.build(), []
            for at in range(0, len(records), most):
                found += transform(records[at : at + most])
            first_result = _plain(found) if first_result is None else first_result
            assert _plain(found) == first_result, f"batches of {most}"

    def test_a_value_is_hidden_everywhere(self, rig: RecordTransformRig) -> None:
        """A value masked in the stream is masked in snapshots."""
        form = ConvertedFormat(
            RecordConverters(key=JSON, value=JSON, header=JSON), format_context(CAPTURE)
        )
        transform, found = rig.build(), []
        for parts in life_of_a_row()[:2]:  # a record of a later one may have other fields
            changed: list[ConnectRecord] = []
            with contextlib.suppress(RecordUnfit):
                changed = transform(form.records(parts, NOW))
            found.append([(each.key, each.value) for each in changed])
        assert_hidden_alike(found)

    def test_results_of_a_schema_are_cached(self, rig: RecordTransformRig) -> None:
        """One input schema has one output schema object.

        Encoders are looked up by the schema object.
        """
        transform, records = rig.build(), list(_fit(rig))
        first, again = transform(list(records)), transform(list(records))
        for one, other in zip(first, again, strict=True):
            for record_part in ("key_schema", "value_schema"):
                assert getattr(one, record_part) is getattr(other, record_part), (
                    f"{record_part} of {one.topic}"
                )


def _fit(rig: RecordTransformRig) -> list[ConnectRecord]:
    fit, transform = [], rig.build()
    for record in rig.records:
        with contextlib.suppress(RecordUnfit):
            transform([record])
            fit.append(record)
    return fit


def _written(record: ConnectRecord) -> None:
    assert isinstance(record.topic, str)
    assert record.topic, "a record without a topic"
    parts: list[tuple[str, Schema | None, object]] = [
        ("the key", record.key_schema, record.key),
        ("the value", record.value_schema, record.value),
        *((f"the header {name}", schema, value) for name, schema, value in record.headers),
    ]
    for what, schema, value in parts:
        if schema is None and value is None:
            continue
        try:
            JSON.encoder(record.topic, schema)(value)
        except (ValueError, TypeError, KeyError, AttributeError) as cause:
            pytest.fail(f"{what} of a record for {record.topic} does not fit its schema: {cause!r}")


def _plain(records: Iterable[ConnectRecord]) -> list[str]:
    return [repr(record) for record in records]
