"""Conformance tests for transforms of events.

Subclass `EventTransformSuite` and define the fixture ``rig``:

    class TestMyTransform(EventTransformSuite):
        @pytest.fixture
        def rig(self):
            return EventTransformRig(MY_SPEC, MyProperties())
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import pytest

from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.events import EventTransform
from waltap.changes.events.event import Record
from waltap.changes.transactions.position import START
from waltap.encoders.json.event_format import JsonEventFormat
from waltap.encoders.json.properties import JsonProperties
from waltap.ports.specs import EventTransformSpec
from waltap_testing.installed import format_context
from waltap_testing.suite import RigSuite, assert_hidden_alike
from waltap_testing.workload import (
    NOW,
    life_of_a_row,
    mixed,
    rare_parts,
    snapshot_and_stream,
)


@dataclass(frozen=True, slots=True)
class EventTransformRig:
    """The transform under test: its spec, and properties for its factory."""

    spec: EventTransformSpec
    properties: object = None

    def build(self) -> EventTransform:
        return self.spec.factory(self.properties)

    def format(self, *, schemas: bool = False, skipped: str = "none") -> JsonEventFormat:
        """Return a format of JSON records with a new transform."""
        capture = CaptureProperties.model_validate(
            {"topic.prefix": "server", "skipped.operations": skipped}
        )
        enabled = {f"{part}.converter.schemas.enable": schemas for part in ("key", "value")}
        return JsonEventFormat(
            JsonProperties.model_validate(enabled),
            format_context(capture, transforms=[(self.spec.name, self.build())]),
        )


class EventTransformSuite(RigSuite):
    """Rules for every transform of events, checked in the JSON output."""

    needs = "an EventTransformRig"

    def test_no_events_stay_none(self, rig: EventTransformRig) -> None:
        assert rig.build()([]) == []

    @pytest.mark.parametrize("schemas", [False, True])
    def test_what_comes_out_is_written_and_read(
        self, rig: EventTransformRig, *, schemas: bool
    ) -> None:
        """Output events can be encoded, and rows match their schema."""
        for record in _records(rig.format(schemas=schemas)):
            assert isinstance(record.topic, str)
            assert record.topic, "an event without a topic"
            if record.value is None:
                continue
            value = json.loads(record.value)
            if schemas:
                fields = {field["field"]: field for field in value["schema"]["fields"]}
                for image in ("before", "after"):
                    row = value["payload"].get(image)  # a heartbeat has none
                    if row is not None:
                        assert list(row) == [f["field"] for f in fields[image]["fields"]]

    def test_the_same_batches_give_the_same(self, rig: EventTransformRig) -> None:
        """Another transform object, as after a crash, returns equal events."""
        assert _plain(_records(rig.format())) == _plain(_records(rig.format()))

    def test_cutting_batches_otherwise_makes_no_difference(self, rig: EventTransformRig) -> None:
        """The limits of batches do not change the result."""
        workload = mixed(truncate=True)
        found = []
        for most in (1, 4, 1_000):
            form = rig.format()
            batches = workload.batches(most, START, records=False)
            found.append([r for batch in batches for r in _plain(form.render(batch.parts, NOW))])
        assert found[0] == found[1] == found[2]

    def test_a_value_is_hidden_everywhere(self, rig: EventTransformRig) -> None:
        """A value masked in the stream is masked in snapshots and in ``before``."""
        form = rig.format()
        assert_hidden_alike(
            [(each.key, each.value) for each in form.render(parts, NOW)]
            for parts in life_of_a_row()
        )

    def test_a_tombstone_comes_with_its_delete(self, rig: EventTransformRig) -> None:
        deleted: Record | None = None
        for record in _records(rig.format()):
            if record.value is None:
                assert deleted is not None, "a tombstone of nothing"
                assert (record.topic, record.key) == (deleted.topic, deleted.key)
            deleted = record


def _records(form: JsonEventFormat) -> Iterator[Record]:
    """Yield the records of a snapshot and of transactions of every operation."""
    for batch in snapshot_and_stream():
        yield from form.render(batch.parts, NOW)
    yield from form.render(rare_parts(), NOW)


def _plain(records: Iterable[Record]) -> list[tuple[object, ...]]:
    return [(r.topic, r.key, r.value, r.headers) for r in records]
