"""Transforms of changes, of events and of records with one planted fault each: their suites find every one."""

import itertools

import msgspec
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
from waltap_testing.event_transform_suite import EventTransformRig, EventTransformSuite
from waltap_testing.record_transform_suite import RecordTransformRig, RecordTransformSuite
from waltap_testing.transform_suite import TransformRig, TransformSuite

SAID = {"name": "planted", "summary": "Has a fault."}

# --- of changes ---

CHANGES = Faults()


def transactions(batch):
    return [part for part in batch.parts if isinstance(part, TransactionPart)]


def inserts(batch):
    return [c for part in transactions(batch) for c in part.changes if isinstance(c, Insert)]


def filtered(batch, keep):
    parts = [
        msgspec.structs.replace(part, changes=[c for c in part.changes if keep(c)])
        if isinstance(part, TransactionPart)
        else part
        for part in batch.parts
    ]
    left = sum(len(getattr(p, "changes", getattr(p, "rows", ()))) for p in parts)
    return msgspec.structs.replace(batch, parts=parts, events=left)


def made(plugin):
    """Return a transform for one run: a class keeps something for it."""
    return plugin() if isinstance(plugin, type) else plugin


@CHANGES.right
def only_inserts(batch):
    """Leave all but inserts out. Right as it is."""
    return filtered(batch, lambda change: isinstance(change, Insert))


@CHANGES.found_by("test_the_position_is_left_alone")
def moves_the_position(batch):
    last = max((part.end_lsn for part in transactions(batch)), default=0)
    return msgspec.structs.replace(batch, position=Position(last))


@CHANGES.found_by("test_every_part_stays_in_its_place")
def drops_empty_transactions(batch):
    found = only_inserts(batch)
    found.parts = [part for part in found.parts if getattr(part, "changes", True)]
    return found


@CHANGES.found_by("test_changes_keep_their_order_and_none_is_invented")
def sorts_changes(batch):
    for part in transactions(batch):
        part.changes.sort(key=lambda change: -change.lsn)
    return batch


@CHANGES.found_by("test_changes_keep_their_order_and_none_is_invented")
def doubles_changes(batch):
    for part in transactions(batch):
        part.changes = [c for change in part.changes for c in (change, change)]
    return batch


@CHANGES.found_by("test_events_are_counted")
def miscounts_events(batch):
    return msgspec.structs.replace(only_inserts(batch), events=batch.events)


@CHANGES.found_by("test_rows_fit_their_relation")
def cuts_rows_but_not_relations(batch):
    for change in inserts(batch):
        change.new = change.new[:-1]
    return batch


@CHANGES.found_by("test_a_relation_stays_the_same_object")
def makes_relations_per_row(batch):
    for change in inserts(batch):
        change.relation = msgspec.structs.replace(change.relation)
    return batch


@CHANGES.found_by("test_cutting_batches_otherwise_makes_no_difference")
def keeps_every_other_of_a_batch(batch):
    numbers = itertools.count()
    return filtered(batch, lambda _change: next(numbers) % 2 == 0)


@CHANGES.found_by("test_the_position_is_left_alone")
def makes_a_batch_of_its_own(batch):
    return Batch(
        parts=batch.parts,
        position=batch.position,
        events=batch.events,
        ends_transaction=batch.ends_transaction,
        snapshot=batch.snapshot,
    )


@CHANGES.found_by("test_every_part_stays_in_its_place")
def makes_pieces_of_its_own(batch):
    def own(part):
        if not isinstance(part, SnapshotRows):
            return part
        kept = (
            "relation",
            "rows",
            "ts",
            "lsn",
            "xid",
            "kind",
            "opens",
            "complete",
            "first_marker",
            "last_marker",
        )
        return SnapshotRows(**{name: getattr(part, name) for name in kept})

    return msgspec.structs.replace(batch, parts=[own(part) for part in batch.parts])


@CHANGES.found_by("test_every_part_stays_in_its_place")
def forgets_the_origin(batch):
    parts = [
        msgspec.structs.replace(p, origin=None) if isinstance(p, TransactionPart) else p
        for p in batch.parts
    ]
    return msgspec.structs.replace(batch, parts=parts)


@CHANGES.found_by("test_changes_that_come_in_stay_as_they_are")
def changes_the_changes_themselves(batch):
    for change in inserts(batch):
        change.new = (*change.new[:2], "***")
    return batch


@CHANGES.found_by("test_rows_fit_their_relation", ValueError)
def expects_one_truncated_table(batch):
    for part in transactions(batch):
        for change in part.changes:
            if isinstance(change, Truncate):
                (_one,) = change.relations
    return batch


@CHANGES.found_by("test_rows_of_a_snapshot_become_what_inserts_become")
def masks_the_stream_alone(batch):
    for part in transactions(batch):
        part.changes = [
            msgspec.structs.replace(change, new=(*change.new[:2], "***"))
            if isinstance(change, Insert)
            else change
            for change in part.changes
        ]
    return batch


def masks_rows(batch, names=("new", "old")):
    def masked(change):
        rows = {name: getattr(change, name, ()) for name in names}
        new = {name: (*row[:2], "***") for name, row in rows.items() if row}
        return msgspec.structs.replace(change, **new)

    for part in batch.parts:
        if isinstance(part, SnapshotRows):
            part.rows = [(*row[:2], "***") for row in part.rows]
        else:
            part.changes = [masked(change) for change in part.changes]
    return batch


@CHANGES.found_by("test_a_value_is_hidden_everywhere", right=masks_rows)
def masks_new_rows_alone(batch):
    return masks_rows(batch, names=("new",))


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


@EVENTS.found_by("test_cutting_batches_otherwise_makes_no_difference")
def keeps_the_first_of_each_batch(events):
    return events[:1]


@EVENTS.right
def masks(events, operations="crud", rows=("before", "after")):
    for event in events:
        for row in (getattr(event, name) for name in rows if event.op in operations):
            if row is not None and "name" in row:
                row["name"] = "***"
    return events


@EVENTS.found_by("test_a_value_is_hidden_everywhere", right=masks)
def masks_what_is_streamed(events):
    return masks(events, operations="cud")


@EVENTS.found_by("test_a_value_is_hidden_everywhere", right=masks)
def masks_new_rows(events):
    return masks(events, rows=("after",))


@EVENTS.found_by("test_what_comes_out_is_written_and_read", EventTransformFailed)
def turns_events_round(events):
    return events[::-1]


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
    """Return ``records`` with ``of`` each that has a value in its place."""
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


@RECORDS.found_by("test_a_record_that_is_unfit_has_an_error", KeyError)
def lets_out_an_error_of_its_own(records):
    return [each for each in records if each.value["op"] != "d"]


@RECORDS.found_by("test_it_is_for_some_records")
def is_for_nothing(records):
    if records:
        raise RecordUnfit("nothing is right")
    return []


@RECORDS.found_by("test_results_of_a_schema_are_cached")
def makes_a_schema_for_each_record(records):
    def of(each):
        value = {**each.value, "extra": ""}
        return replace(each, value_schema=longer(each.value_schema), value=value)

    return changed(records, of)


@RECORDS.found_by("test_what_comes_out_fits_its_schemas")
class AddsAFieldToTheSchemaAlone:
    def __init__(self):
        self.kept = {}

    def __call__(self, records):
        return changed(records, lambda each: replace(each, value_schema=self.of(each.value_schema)))

    def of(self, schema):
        return self.kept.setdefault(id(schema), (schema, longer(schema)))[1]


@RECORDS.found_by("test_what_comes_out_fits_its_schemas")
def leaves_no_topic(records):
    return [replace(each, topic="") for each in records]


@RECORDS.found_by("test_cutting_batches_otherwise_makes_no_difference")
def keeps_the_first_record_of_each_batch(records):
    return records[:1]


def hides_rows(records, operations="cr"):
    def of(each):
        hidden = (each.value.get("op") or "-") in operations
        return replace(each, value={**each.value, "after": None}) if hidden else each

    return changed(records, of)


@RECORDS.found_by("test_a_value_is_hidden_everywhere", right=hides_rows)
def hides_rows_of_the_stream(records):
    return hides_rows(records, operations="c")


@RECORDS.found_by("test_records_come_out_in_a_list")
def gives_something_to_iterate(records):
    return tuple(records)


@RECORDS.found_by("test_no_records_stay_none")
def gives_something_of_nothing(records):
    return records or [None]


@RECORDS.found_by("test_the_same_records_give_the_same")
class RemembersAnEarlierRun:
    def __init__(self):
        self.number = next(MADE)

    def __call__(self, records):
        return [replace(each, topic=f"{each.topic}.{self.number}") for each in records]


class TestPlantedRecordTransforms(FindsFaults):
    suite = RecordTransformSuite
    faults = RECORDS

    def rig(self, plugin, _folder):
        return RecordTransformRig(
            RecordTransformSpec(factory=lambda _given, _context: made(plugin), **SAID)
        )
