"""Formats with one planted fault each: `FormatSuite` finds every one. All are JSON with one thing made wrong."""

import itertools
import json
import re
from dataclasses import replace

import msgspec
from tests.harness.planted_faults import Faults, FindsFaults

import waltap.plugin
from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.decode.message import Insert, Truncate, Update
from waltap.changes.decode.tuple_image import UNCHANGED
from waltap.changes.transactions.transaction import TransactionPart
from waltap.encoders.json.event_format import JsonEventFormat
from waltap.encoders.json.format import JsonFormat
from waltap.encoders.json.properties import JsonProperties
from waltap_testing.suites.format import FormatRig, FormatSuite

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


def record(**fields):
    return {"of": lambda _, r: msgspec.structs.replace(r, **{n: make(r) for n, make in fields.items()})}  # fmt: skip


def left_out(when):
    return {"of": lambda _, record: None if when(record, record.value or b"") else record}


def updates(value):
    """Return a ``change`` of each value that an update has."""

    def change(_self, change):
        if not isinstance(change, Update):
            return change
        return msgspec.structs.replace(change, new=tuple(map(value, change.new)))

    return {"change": change}


def context(**fields):
    def init(self, properties, context):
        JsonFormat.__init__(self, properties, replace(context, **fields))

    return {"__init__": init}


def rendered(before=lambda parts: parts, after=lambda records: records):
    return {"render": lambda self, parts, now: after(Right.render(self, before(parts), now))}


TEXT = "test_any_text_is_rendered_faithfully"
RECORDS = "test_every_change_of_a_row_gives_a_record"
NUMBERS = itertools.count()
EVERYTHING = CaptureRules(CaptureProperties.model_validate({"topic.prefix": "server"}))
for name, promise, members, *raises in (
    ("WritesRawControlCharacters", TEXT, record(value=lambda r: r.value and r.value.replace(b"\\u0001", b"\x01")), ValueError),
    ("CutsLongTexts", TEXT, updates(lambda value: value[:1_000_000] if isinstance(value, str) else value)),
    ("ShiftsColumns", "test_a_column_that_is_left_out_moves_no_other", {"change": lambda _, c: Insert(c.relation, c.lsn, (c.new[0], *c.new[:0:-1])) if isinstance(c, Insert) else c}),
    ("TruncatesTheFirst", "test_a_truncate_is_one_of_each_table", {"change": lambda _, c: Truncate(c.relations[:1], c.lsn) if isinstance(c, Truncate) else c}),
    ("DropsTruncates", "test_a_truncate_is_one_of_each_table", left_out(lambda _, value: b'"op":"t"' in value)),
    ("KeysByTheFirstColumn", "test_a_key_has_every_column_of_the_primary_key", record(key=lambda r: r.key and re.sub(b',"serial":"?1?2?"?', b"", r.key))),
    ("DropsMessages", "test_logical_messages_give_records", left_out(lambda _, value: b'"op":"m"' in value)),
    ("WritesNamesUnescaped", "test_any_identifier_is_rendered_validly", record(value=lambda r: r.value and r.value.replace(b'\\"', b'"')), ValueError),
    ("RendersByMood", "test_the_same_parts_give_the_same_bytes", record(value=lambda r: r.value and b'{"n":%d}' % next(NUMBERS))),
    ("LosesTombstonesAtTheEnd", "test_parts_may_come_in_any_number_of_calls", rendered(after=lambda r: r[:-1] if r and r[-1].value is None else r)),
    ("KeysDeletesOtherwise", "test_a_row_has_one_key_all_its_life", record(key=lambda r: r.key and (b" " if b'"op":"d"' in (r.value or b"") else b"") + r.key)),
    ("TombstonesFirst", "test_a_tombstone_follows_its_delete_alone", rendered(after=lambda records: sorted(records, key=lambda r: r.value is not None))),
    ("FoldsUnchangedIntoNull", "test_null_and_unchanged_differ", updates(lambda value: None if value is UNCHANGED else value)),
    ("ForgetsTheOldKey", "test_a_changed_key_ends_the_old_row_and_begins_the_new", left_out(lambda r, _: any(name == "__debezium.newkey" for name, _ in r.headers))),
    ("SendsAllToOneTopic", "test_tables_have_different_topics", record(topic=lambda _: "everything")),
    ("WritesWhatTheProfileHides", "test_a_hidden_value_is_nowhere", context(capture=EVERYTHING)),
    ("WritesWhatTheProfileHides", "test_what_a_profile_leaves_out_gives_no_record", context(capture=EVERYTHING)),
    ("ChoosesTheTopic", "test_a_topic_is_the_one_of_a_transform_else_of_a_plugin", context(choose_topic=lambda _relation: None)),
    ("TopicsAreBytes", "test_everything_is_valid", record(topic=lambda r: r.topic.encode())),
    ("ForgetsOnlyWhatItKnows", "test_a_forgotten_relation_gives_the_same_bytes", {"forget": lambda _, oid: {}[oid]}, KeyError),
    ("ForgetsNothing", "test_forgotten_relations_do_not_stay_in_memory", {"forget": lambda *_: None}),
    ("SendsNoRowsReadBesideTheStream", RECORDS, rendered(before=lambda parts: [p for p in parts if getattr(p, "kind", "initial") == "initial"])),
    ("DropsRowsWithoutKey", RECORDS, left_out(lambda r, value: not r.key and b'"op"' in value)),
):  # fmt: skip
    FAULTS.plant(name, promise, *raises, **members)


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
