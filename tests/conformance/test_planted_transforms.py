"""Transforms of changes, of events and of records with one planted fault each: their suites find every one."""

import itertools

from msgspec.structs import replace
from tests.harness.planted_faults import Faults, FindsFaults
from tests.harness.schemas import TEXT

from waltap.changes.decode.message import Insert, Truncate
from waltap.changes.mapping.connect_schema import Field
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, SnapshotRows, TransactionPart
from waltap.encoders.format.record_transform import RecordUnfit
from waltap.encoders.json.event_format import EventTransformFailed
from waltap.ports.specs import EventTransformSpec, RecordTransformSpec, TransformSpec
from waltap_testing.suites.record_transform import RecordTransformRig, RecordTransformSuite
from waltap_testing.suites.transform import (
    EventTransformRig,
    EventTransformSuite,
    TransformRig,
    TransformSuite,
)

SAID = {"name": "planted", "summary": "Has a fault."}

# --- of changes ---

CHANGES = Faults()


def transactions(batch):
    return [part for part in batch.parts if isinstance(part, TransactionPart)]


def inserts(batch):
    return [c for part in transactions(batch) for c in part.changes if isinstance(c, Insert)]


def filtered(batch, keep):
    parts = [
        replace(part, changes=[c for c in part.changes if keep(c)])
        if isinstance(part, TransactionPart)
        else part
        for part in batch.parts
    ]
    left = sum(len(getattr(p, "changes", getattr(p, "rows", ()))) for p in parts)
    return replace(batch, parts=parts, events=left)


def made(plugin):
    """Return a transform for one run: a class keeps something for it."""
    return plugin() if isinstance(plugin, type) else plugin


@CHANGES.right
def only_inserts(batch):
    """Leave all but inserts out. Right as it is."""
    return filtered(batch, lambda change: isinstance(change, Insert))


def altering(found_in, alter):
    """Return a transform that alters each of what ``found_in`` gives of a batch."""

    def transform(batch):
        for each in found_in(batch):
            alter(each)
        return batch

    return transform


def truncates(batch):
    return [c for part in transactions(batch) for c in part.changes if isinstance(c, Truncate)]


def of_its_own(kind, each):
    """Return another ``kind`` with fields of ``each``, those that a version of waltap did not have left out."""
    names = {
        Batch: "parts position events snapshot",
        SnapshotRows: "relation rows ts lsn xid kind opens complete first_marker last_marker",
    }
    return kind(**{name: getattr(each, name) for name in names[kind].split()})


def with_parts(batch, kind, make):
    parts = [make(part) if isinstance(part, kind) else part for part in batch.parts]
    return replace(batch, parts=parts)


def masked(change):
    return replace(change, new=(*change.new[:2], "***")) if isinstance(change, Insert) else change


PLACE = "test_every_part_stays_in_its_place"
ORDER = "test_changes_keep_their_order_and_none_is_invented"
CHANGES.make(
    ("moves_the_position", "test_the_position_is_left_alone", lambda batch: replace(batch, position=Position(max((part.end_lsn for part in transactions(batch)), default=0)))),
    ("drops_empty_transactions", PLACE, lambda batch: replace(found := only_inserts(batch), parts=[part for part in found.parts if getattr(part, "changes", True)])),
    ("sorts_changes", ORDER, altering(transactions, lambda part: part.changes.sort(key=lambda change: -change.lsn))),
    ("doubles_changes", ORDER, altering(transactions, lambda part: setattr(part, "changes", [c for change in part.changes for c in (change, change)]))),
    ("cuts_rows_but_not_relations", "test_rows_fit_their_relation", altering(inserts, lambda change: setattr(change, "new", change.new[:-1]))),
    ("writes_numbers", "test_rows_fit_their_relation", altering(inserts, lambda change: setattr(change, "new", (*change.new[:-1], 7)))),
    ("makes_relations_per_row", "test_a_relation_stays_the_same_object", altering(inserts, lambda change: setattr(change, "relation", replace(change.relation)))),
    ("keeps_every_other_of_a_batch", "test_cutting_batches_otherwise_makes_no_difference", lambda batch: filtered(batch, lambda _, numbers=itertools.count(): next(numbers) % 2 == 0)),
    ("makes_a_batch_of_its_own", "test_the_position_is_left_alone", lambda batch: of_its_own(Batch, batch)),
    ("makes_pieces_of_its_own", PLACE, lambda batch: with_parts(batch, SnapshotRows, lambda part: of_its_own(SnapshotRows, part))),
    ("forgets_the_origin", PLACE, lambda batch: with_parts(batch, TransactionPart, lambda part: replace(part, origin=None))),
    ("changes_the_changes_themselves", "test_changes_that_come_in_stay_as_they_are", altering(inserts, lambda change: setattr(change, "new", masked(change).new))),
    ("expects_one_truncated_table", "test_rows_fit_their_relation", altering(truncates, lambda change: [one for (one,) in (change.relations,)]), ValueError),
    ("masks_the_stream_alone", "test_rows_of_a_snapshot_become_what_inserts_become", altering(transactions, lambda part: setattr(part, "changes", [*map(masked, part.changes)]))),
)  # fmt: skip


def masks_rows(batch, names=("new", "old")):
    def hidden(change):
        rows = {name: getattr(change, name, ()) for name in names}
        new = {name: (*row[:2], "***") for name, row in rows.items() if row}
        return replace(change, **new)

    for part in batch.parts:
        if isinstance(part, SnapshotRows):
            part.rows = [(*row[:2], "***") for row in part.rows]
        else:
            part.changes = [hidden(change) for change in part.changes]
    return batch


CHANGES.make(("masks_new_rows_alone", "test_a_value_is_hidden_everywhere", lambda batch: masks_rows(batch, names=("new",))), right=masks_rows)  # fmt: skip
MADE = itertools.count()


@CHANGES.found_by("test_the_same_batch_gives_the_same")
class DiffersPerObject:
    def __init__(self):
        self.keep = next(MADE) % 2

    def __call__(self, batch):
        return filtered(batch, lambda _change: self.keep)


class TestPlantedTransforms(FindsFaults):
    suite = TransformSuite
    faults = CHANGES

    def rig(self, plugin, _folder):
        return TransformRig(TransformSpec(factory=lambda _given: made(plugin), **SAID))


# --- of events ---

EVENTS = Faults()


@EVENTS.right
def nothing_changed(events):
    return events


@EVENTS.found_by("test_a_tombstone_comes_with_its_delete")
def leaves_the_tombstone_behind(events):
    for event in events:
        event.topic += ".gone" if event.op == "d" and not event.tombstone else ""
    return events


@EVENTS.right
def masks(events, operations="crud", rows=("before", "after")):
    for event in events:
        for row in (getattr(event, name) for name in rows if event.op in operations):
            if row is not None and "name" in row:
                row["name"] = "***"
    return events


EVENTS.make(
    ("masks_what_is_streamed", "test_a_value_is_hidden_everywhere", lambda events: masks(events, operations="cud")),
    ("masks_new_rows", "test_a_value_is_hidden_everywhere", lambda events: masks(events, rows=("after",))),
    right=masks,
)  # fmt: skip
EVENTS.make(
    ("keeps_the_first_of_each_batch", "test_cutting_batches_otherwise_makes_no_difference", lambda events: events[:1]),
    ("turns_events_round", "test_what_comes_out_is_written_and_read", lambda events: events[::-1], EventTransformFailed),
    right=nothing_changed,
)  # fmt: skip


@EVENTS.found_by("test_what_comes_out_is_written_and_read")
def takes_the_topic_away(events):
    for event in events:
        event.topic = ""
    return events


class TestPlantedEventTransforms(FindsFaults):
    suite = EventTransformSuite
    faults = EVENTS

    def rig(self, plugin, _folder):
        return EventTransformRig(EventTransformSpec(factory=lambda _given: plugin, **SAID))


# --- of records ---

RECORDS = Faults()


def longer(schema):
    return replace(schema, fields=(*schema.fields, Field("extra", TEXT)))


def changed(records, of):
    return [each if each.value is None else of(each) for each in records]


@RECORDS.right
def another_topic(records):
    return [replace(each, topic=f"x.{each.topic}") for each in records]


@RECORDS.found_by("test_records_that_come_in_stay_as_they_are")
def changes_what_it_was_given(records):
    for each in records:
        if each.value is not None:
            each.value["seen"] = True
    return records


@RECORDS.found_by("test_it_is_for_some_records")
def is_for_nothing(records):
    if records:
        raise RecordUnfit("nothing is right")
    return []


@RECORDS.found_by("test_what_comes_out_fits_its_schemas")
class AddsAFieldToTheSchemaAlone:
    def __init__(self):
        self.kept = {}

    def __call__(self, records):
        return changed(records, lambda each: replace(each, value_schema=self.of(each.value_schema)))

    def of(self, schema):
        return self.kept.setdefault(id(schema), (schema, longer(schema)))[1]


def hides_rows(records, operations="cr"):
    def of(each):
        hidden = (each.value.get("op") or "-") in operations
        return replace(each, value={**each.value, "after": None}) if hidden else each

    return changed(records, of)


@RECORDS.found_by("test_the_same_records_give_the_same")
class RemembersAnEarlierRun:
    def __init__(self):
        self.number = next(MADE)

    def __call__(self, records):
        return [replace(each, topic=f"{each.topic}.{self.number}") for each in records]


RECORDS.make(("hides_rows_of_the_stream", "test_a_value_is_hidden_everywhere", lambda records: hides_rows(records, operations="c")), right=hides_rows)  # fmt: skip
RECORDS.make(
    ("lets_out_an_error_of_its_own", "test_a_record_that_is_unfit_has_an_error", lambda records: [each for each in records if each.value["op"] != "d"], KeyError),
    ("makes_a_schema_for_each_record", "test_results_of_a_schema_are_cached", lambda records: changed(records, lambda r: replace(r, value_schema=longer(r.value_schema), value={**r.value, "extra": ""}))),
    ("leaves_no_topic", "test_what_comes_out_fits_its_schemas", lambda records: [replace(each, topic="") for each in records]),
    ("keeps_the_first_record_of_each_batch", "test_cutting_batches_otherwise_makes_no_difference", lambda records: records[:1]),
    ("gives_something_to_iterate", "test_records_come_out_in_a_list", lambda records: tuple(records)),
    ("gives_something_of_nothing", "test_no_records_stay_none", lambda records: records or [None]),
)  # fmt: skip


class TestPlantedRecordTransforms(FindsFaults):
    suite = RecordTransformSuite
    faults = RECORDS

    def rig(self, plugin, _folder):
        return RecordTransformRig(
            RecordTransformSpec(factory=lambda _given, _context: made(plugin), **SAID)
        )
