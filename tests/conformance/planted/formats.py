"""Formats and transforms with one planted fault each."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar

import msgspec
import pytest

import waltap.plugin
from waltap.decode.message import Insert, Update
from waltap.decode.tuple_image import UNCHANGED
from waltap.transactions.transaction import TransactionPart
from waltap.json.event_format import JsonEventFormat
from waltap.json.format import JsonFormat
from waltap.json.properties import JsonProperties
from waltap.format.record import Record
from waltap.source.position import Position
from waltap.specs import EventTransformSpec, TransformSpec
from waltap_testing.event_transform_suite import EventTransformRig, EventTransformSuite
from waltap_testing.format_suite import FormatRig, FormatSuite
from waltap_testing.transform_suite import TransformRig, TransformSuite

(SPEC,) = [spec for spec in waltap.plugin.register_formats() if spec.name == "json"]
PROPERTIES = JsonProperties.model_validate(
    {"key.converter.schemas.enable": False, "value.converter.schemas.enable": False}
)


class Planted(FormatSuite):
    """The suite on a faulty format."""

    format_class: ClassVar[type[JsonFormat]]

    @pytest.fixture
    def rig(self):
        spec = replace(
            SPEC, factory=self.format_class, takes_events=False, takes_record_transforms=False
        )
        return FormatRig(spec, PROPERTIES, parse=json.loads)


class TestWithoutFault(Planted):
    format_class = JsonFormat
    caught_by = ""


def with_value(record, value):
    return Record(record.topic, record.key, value, record.headers, record.partition)


class RawControls(JsonFormat):
    r"""Writes control characters as they are, where JSON wants \u00XX."""

    def render(self, parts, now):
        return [
            with_value(r, None if r.value is None else r.value.replace(b"\\u0001", b"\x01"))
            for r in super().render(parts, now)
        ]


class TestWritesRawControlCharacters(Planted):
    format_class = RawControls
    caught_by = "test_any_text_is_rendered_faithfully"


class RawNames(JsonFormat):
    def render(self, parts, now):
        return [
            with_value(r, None if r.value is None else r.value.replace(b'\\"', b'"'))
            for r in super().render(parts, now)
        ]


class TestWritesNamesUnescaped(Planted):
    format_class = RawNames
    caught_by = "test_any_identifier_is_rendered_validly"


class Counts(JsonFormat):
    def __init__(self, properties, context):
        super().__init__(properties, context)
        self.numbers = itertools.count()

    def render(self, parts, now):
        return [
            with_value(r, r.value and b'{"n":%d}' % next(self.numbers))
            for r in super().render(parts, now)
        ]


class TestRendersByMood(Planted):
    format_class = Counts
    caught_by = "test_the_same_parts_give_the_same_bytes"


class LosesTombstonesAtTheEnd(JsonFormat):
    """Holds a tombstone back until the next record of the call."""

    def render(self, parts, now):
        records = super().render(parts, now)
        return records[:-1] if records and records[-1].value is None else records


class TestDependsOnTheCallsCut(Planted):
    format_class = LosesTombstonesAtTheEnd
    caught_by = "test_parts_may_come_in_any_number_of_calls"


class KeysDeletesOtherwise(JsonFormat):
    def render(self, parts, now):
        return [
            Record(r.topic, r.key and b" " + r.key, r.value, r.headers)
            if b'"op":"d"' in (r.value or b"")
            else r
            for r in super().render(parts, now)
        ]


class TestKeysDeletesOtherwise(Planted):
    format_class = KeysDeletesOtherwise
    caught_by = "test_a_row_has_one_key_all_its_life"


class TombstonesFirst(JsonFormat):
    def render(self, parts, now):
        return sorted(super().render(parts, now), key=lambda record: record.value is not None)


class TestTombstonesComeFirst(Planted):
    format_class = TombstonesFirst
    caught_by = "test_a_tombstone_follows_its_delete_alone"


class FoldsUnchanged(JsonFormat):
    def render(self, parts, now):
        for part in parts:
            if isinstance(part, TransactionPart):
                part.changes = [
                    msgspec.structs.replace(
                        change, new=tuple(None if v is UNCHANGED else v for v in change.new)
                    )
                    if isinstance(change, Update)
                    else change
                    for change in part.changes
                ]
        return super().render(parts, now)


class TestFoldsUnchangedIntoNull(Planted):
    format_class = FoldsUnchanged
    caught_by = "test_null_and_unchanged_look_different"


class ForgetsOldKeys(JsonFormat):
    def render(self, parts, now):
        records = super().render(parts, now)
        return [r for r in records if not any(n == "__debezium.newkey" for n, _ in r.headers)]


class TestForgetsTheOldKey(Planted):
    format_class = ForgetsOldKeys
    caught_by = "test_a_changed_key_ends_the_old_row_and_begins_the_new"


class OneTopic(JsonFormat):
    def render(self, parts, now):
        return [Record("everything", r.key, r.value, r.headers) for r in super().render(parts, now)]


class TestSendsAllToOneTopic(Planted):
    format_class = OneTopic
    caught_by = "test_topics_tell_tables_apart"


class FirstCodecForEver(JsonFormat):
    """Keeps the first relation of a table, whatever comes later."""

    def __init__(self, properties, context):
        super().__init__(properties, context)
        self.first = {}

    def render(self, parts, now):
        changed = []
        for part in parts:
            if isinstance(part, TransactionPart):
                changes = [self.bound(change) for change in part.changes]
                part = msgspec.structs.replace(part, changes=changes)
            changed.append(part)
        return super().render(changed, now)

    def bound(self, change):
        if not isinstance(change, Insert):
            return change
        relation = self.first.setdefault(change.relation.name, change.relation)
        return Insert(relation, change.lsn, change.new[: len(relation.columns)])


class TestKeepsTheFirstCodec(Planted):
    format_class = FirstCodecForEver
    caught_by = "test_a_schema_change_in_mid_batch_is_followed"


class MutatesParts(JsonFormat):
    def render(self, parts, now):
        records = super().render(parts, now)
        for part in parts:
            if isinstance(part, TransactionPart):
                part.changes = []
        return records


class TestEmptiesItsInput(Planted):
    format_class = MutatesParts
    caught_by = "test_parts_are_left_as_they_are"


# --- transforms ---


class PlantedTransform(TransformSuite):
    """The suite on a faulty transform."""

    transform: ClassVar[Callable]

    @pytest.fixture
    def rig(self):
        make = type(self).transform
        spec = TransformSpec(name="planted", summary="Planted.", factory=lambda _: make())
        return TransformRig(spec)


def only_inserts(change):
    return isinstance(change, Insert)


def filtered(batch, keep, *, events=True):
    parts = []
    for part in batch.parts:
        if isinstance(part, TransactionPart):
            part = msgspec.structs.replace(part, changes=[c for c in part.changes if keep(c)])
        parts.append(part)
    left = sum(len(getattr(p, "changes", getattr(p, "rows", ()))) for p in parts)
    return msgspec.structs.replace(batch, parts=parts, events=left if events else batch.events)


class Right:
    """Leaves all but inserts out. Right as it is."""

    def __call__(self, batch):
        return filtered(batch, only_inserts)


class TestTransformWithoutFault(PlantedTransform):
    transform = Right
    caught_by = ""


class MovesThePosition:
    def __call__(self, batch):
        last = max((p.end_lsn for p in batch.parts if isinstance(p, TransactionPart)), default=0)
        return msgspec.structs.replace(batch, position=Position(last))


class TestMovesThePosition(PlantedTransform):
    transform = MovesThePosition
    caught_by = "test_the_position_is_left_alone"


class DropsEmptyParts:
    def __call__(self, batch):
        found = filtered(batch, only_inserts)
        found.parts = [p for p in found.parts if getattr(p, "changes", True)]
        return found


class TestDropsEmptyTransactions(PlantedTransform):
    transform = DropsEmptyParts
    caught_by = "test_every_part_stays_in_its_place"


class Sorts:
    def __call__(self, batch):
        for part in batch.parts:
            if isinstance(part, TransactionPart):
                part.changes.sort(key=lambda change: -change.lsn)
        return batch


class TestSortsChanges(PlantedTransform):
    transform = Sorts
    caught_by = "test_changes_keep_their_order_and_none_is_invented"


class Doubles:
    def __call__(self, batch):
        for part in batch.parts:
            if isinstance(part, TransactionPart):
                part.changes = [c for change in part.changes for c in (change, change)]
        return batch


class TestDoublesChanges(PlantedTransform):
    transform = Doubles
    caught_by = "test_changes_keep_their_order_and_none_is_invented"


class Miscounts:
    def __call__(self, batch):
        return filtered(batch, only_inserts, events=False)


class TestMiscountsEvents(PlantedTransform):
    transform = Miscounts
    caught_by = "test_events_are_counted"


class CutsRows:
    def __call__(self, batch):
        for part in batch.parts:
            if isinstance(part, TransactionPart):
                for change in part.changes:
                    if isinstance(change, Insert):
                        change.new = change.new[:-1]
        return batch


class TestCutsRowsButNotRelations(PlantedTransform):
    transform = CutsRows
    caught_by = "test_rows_fit_their_relation"


class NewRelations:
    def __call__(self, batch):
        for part in batch.parts:
            if isinstance(part, TransactionPart):
                for change in part.changes:
                    if isinstance(change, Insert):
                        change.relation = msgspec.structs.replace(change.relation)
        return batch


class TestMakesRelationsPerRow(PlantedTransform):
    transform = NewRelations
    caught_by = "test_a_relation_stays_the_same_object"


class EveryOther:
    """Keeps every other change of a batch."""

    def __call__(self, batch):
        numbers = itertools.count()
        return filtered(batch, lambda _change: next(numbers) % 2 == 0)


class TestDependsOnTheBatch(PlantedTransform):
    transform = EveryOther
    caught_by = "test_cutting_batches_elsewhere_makes_no_difference"


MADE = itertools.count()


class ByMood:
    def __init__(self):
        self.keep = next(MADE) % 2

    def __call__(self, batch):
        return filtered(batch, lambda _change: self.keep)


class TestDiffersPerObject(PlantedTransform):
    transform = ByMood
    caught_by = "test_the_same_batch_gives_the_same"


# --- events ---------------------------------------------------------------------------------------


class KeysWithSpaces(JsonEventFormat):
    """Encodes events with another code than records that no transform concerns."""

    def _record(self, event, source, codec):
        found = super()._record(event, source, codec)
        key = found.key and found.key.replace(b":", b": ")
        return Record(found.topic, key, found.value, found.headers, found.partition)


class TestEncodesEventsOtherwise(FormatSuite):
    caught_by = "test_a_transform_that_changes_nothing_changes_no_byte"

    @pytest.fixture
    def rig(self):
        def factory(properties, context):
            return (KeysWithSpaces if context.transforms else JsonFormat)(properties, context)

        return FormatRig(replace(SPEC, factory=factory), PROPERTIES, parse=json.loads)


class PlantedEventTransform(EventTransformSuite):
    """The suite on a faulty transform of events."""

    transform: ClassVar[Callable[[], Callable]]

    @pytest.fixture
    def rig(self):
        made = type(self).transform
        return EventTransformRig(
            EventTransformSpec(name="planted", summary="Has a fault.", factory=lambda _: made())
        )


class TestEventTransformWithoutFault(PlantedEventTransform):
    transform = staticmethod(lambda: lambda events: events)
    caught_by = ""


def moves_deletes():
    def transform(events):
        for event in events:
            event.topic += ".gone" if event.op == "d" and not event.tombstone else ""
        return events

    return transform


class TestLeavesTheTombstoneBehind(PlantedEventTransform):
    transform = staticmethod(moves_deletes)
    caught_by = "test_a_tombstone_goes_with_its_delete"


def keeps_the_first():
    return lambda events: events[:1]


class TestKeepsTheFirstOfEachBatch(PlantedEventTransform):
    transform = staticmethod(keeps_the_first)
    caught_by = "test_cutting_batches_elsewhere_makes_no_difference"


def turns_round():
    return lambda events: events[::-1]


class TestTurnsEventsRound(PlantedEventTransform):
    transform = staticmethod(turns_round)
    caught_by = "test_what_comes_out_is_written_and_read"
