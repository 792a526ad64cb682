"""Formats with one planted fault each: `FormatSuite` finds every one. All are JSON with one thing made wrong."""

import itertools
import json
from dataclasses import replace

import msgspec
from tests.harness.planted_faults import Faults, FindsFaults

import waltap.plugin
from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.decode.message import Insert, Update
from waltap.changes.decode.tuple_image import UNCHANGED
from waltap.changes.transactions.transaction import TransactionPart
from waltap.encoders.json.event_format import JsonEventFormat
from waltap.encoders.json.format import JsonFormat
from waltap.encoders.json.properties import JsonProperties
from waltap_testing.format_suite import FormatRig, FormatSuite

FAULTS = Faults()
(SPEC,) = [spec for spec in waltap.plugin.register_formats() if spec.name == "json"]
PROPERTIES = JsonProperties.model_validate(
    {"key.converter.schemas.enable": False, "value.converter.schemas.enable": False}
)


@FAULTS.right
class Right(JsonFormat):
    """``of`` gives what becomes of each record, None: it is left out. ``change`` may change a part."""

    def render(self, parts, now):
        records = super().render([self.part(part) for part in parts], now)
        return [found for record in records if (found := self.of(record)) is not None]

    def of(self, record):
        return record

    def part(self, part):
        if isinstance(part, TransactionPart):
            part.changes = [self.change(change) for change in part.changes]
        return part

    def change(self, change):
        return change


class OfValues(Right):
    def of(self, record):
        return msgspec.structs.replace(record, value=record.value and self.value(record.value))


@FAULTS.found_by("test_any_text_is_rendered_faithfully", ValueError)
class WritesRawControlCharacters(OfValues):
    r"""As they are, where JSON wants \u00XX."""

    def value(self, value):
        return value.replace(b"\\u0001", b"\x01")


@FAULTS.found_by("test_any_text_is_rendered_faithfully")
class CutsLongTexts(Right):
    """Like the limit of a destination, and for updates alone."""

    def change(self, change):
        if not isinstance(change, Update):
            return change
        new = tuple(value[:1_000_000] if isinstance(value, str) else value for value in change.new)
        return msgspec.structs.replace(change, new=new)


@FAULTS.found_by("test_logical_messages_give_records")
class DropsMessages(Right):
    def of(self, record):
        return None if b'"op":"m"' in (record.value or b"") else record


@FAULTS.found_by("test_any_identifier_is_rendered_validly", ValueError)
class WritesNamesUnescaped(OfValues):
    def value(self, value):
        return value.replace(b'\\"', b'"')


@FAULTS.found_by("test_the_same_parts_give_the_same_bytes")
class RendersByMood(OfValues):
    def __init__(self, properties, context):
        super().__init__(properties, context)
        self.numbers = itertools.count()

    def value(self, _value):
        return b'{"n":%d}' % next(self.numbers)


@FAULTS.found_by("test_parts_may_come_in_any_number_of_calls")
class LosesTombstonesAtTheEnd(Right):
    """Holds a tombstone back until the next record of the call."""

    def render(self, parts, now):
        records = super().render(parts, now)
        return records[:-1] if records and records[-1].value is None else records


@FAULTS.found_by("test_a_row_has_one_key_all_its_life")
class KeysDeletesOtherwise(Right):
    def of(self, record):
        if b'"op":"d"' not in (record.value or b""):
            return record
        return msgspec.structs.replace(record, key=record.key and b" " + record.key)


@FAULTS.found_by("test_a_tombstone_follows_its_delete_alone")
class TombstonesFirst(Right):
    def render(self, parts, now):
        return sorted(super().render(parts, now), key=lambda record: record.value is not None)


@FAULTS.found_by("test_null_and_unchanged_differ")
class FoldsUnchangedIntoNull(Right):
    def change(self, change):
        if not isinstance(change, Update):
            return change
        new = tuple(None if value is UNCHANGED else value for value in change.new)
        return msgspec.structs.replace(change, new=new)


@FAULTS.found_by("test_a_changed_key_ends_the_old_row_and_begins_the_new")
class ForgetsTheOldKey(Right):
    def of(self, record):
        return None if any(name == "__debezium.newkey" for name, _ in record.headers) else record


@FAULTS.found_by("test_tables_have_different_topics")
class SendsAllToOneTopic(Right):
    def of(self, record):
        return msgspec.structs.replace(record, topic="everything")


@FAULTS.found_by("test_a_schema_change_in_mid_batch_is_followed")
class KeepsTheFirstCodec(Right):
    """Keeps the first relation of a table, whatever comes later."""

    def __init__(self, properties, context):
        super().__init__(properties, context)
        self.first = {}

    def change(self, change):
        if not isinstance(change, Insert):
            return change
        relation = self.first.setdefault(change.relation.name, change.relation)
        return Insert(relation, change.lsn, change.new[: len(relation.columns)])


@FAULTS.found_by("test_a_hidden_value_is_nowhere")
@FAULTS.found_by("test_what_a_profile_leaves_out_gives_no_record")
class WritesWhatTheProfileHides(Right):
    def __init__(self, properties, context):
        everything = CaptureRules(CaptureProperties.model_validate({"topic.prefix": "server"}))
        super().__init__(properties, replace(context, capture=everything))


@FAULTS.found_by("test_a_topic_is_the_one_of_a_transform_else_of_a_plugin")
class ChoosesTheTopic(Right):
    def __init__(self, properties, context):
        super().__init__(properties, replace(context, choose_topic=lambda _relation: None))


@FAULTS.found_by("test_everything_is_valid")
class TopicsAreBytes(Right):
    def of(self, record):
        return msgspec.structs.replace(record, topic=record.topic.encode())


@FAULTS.found_by("test_a_forgotten_relation_gives_the_same_bytes", KeyError)
class ForgetsOnlyWhatItKnows(Right):
    def forget(self, oid):
        raise KeyError(oid)


@FAULTS.found_by("test_every_change_of_a_row_gives_a_record")
class SendsNoRowsReadBesideTheStream(Right):
    def render(self, parts, now):
        initial = [part for part in parts if getattr(part, "kind", "initial") == "initial"]
        return super().render(initial, now)


@FAULTS.found_by("test_every_change_of_a_row_gives_a_record")
class DropsRowsWithoutKey(Right):
    def of(self, record):
        return record if record.key or b'"op"' not in (record.value or b"") else None


@FAULTS.found_by("test_parts_are_left_as_they_are")
class EmptiesItsInput(Right):
    def render(self, parts, now):
        records = super().render(parts, now)
        for part in parts:
            if isinstance(part, TransactionPart):
                part.changes = []
        return records


class KeysWithSpaces(JsonEventFormat):
    def _record(self, event, source, codec):
        found = super()._record(event, source, codec)
        return msgspec.structs.replace(found, key=found.key and found.key.replace(b":", b": "))


@FAULTS.found_by("test_a_transform_that_changes_nothing_changes_no_byte", right=SPEC.factory)
def encodes_events_otherwise(properties, context):
    """Encode events with another code than records that no transform concerns."""
    return (KeysWithSpaces if context.transforms else JsonFormat)(properties, context)


class TestPlantedFormats(FindsFaults):
    suite = FormatSuite
    faults = FAULTS

    def rig(self, plugin, _folder):
        spec = replace(SPEC, factory=plugin)
        if isinstance(plugin, type) and issubclass(plugin, Right):
            spec = replace(spec, takes_events=False, takes_record_transforms=False)
        return FormatRig(spec, PROPERTIES, parse=json.loads)
