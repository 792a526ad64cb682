"""Conformance tests for transforms of changes and of events.

Subclass `TransformSuite` or `EventTransformSuite` and define the fixture ``rig``:

    class TestMyTransform(TransformSuite):
        @pytest.fixture
        def rig(self):
            return TransformRig(MY_SPEC, MyProperties())
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pytest

from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.decode.message import Change, LogicalMessage, Truncate
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import MissingValue
from waltap.changes.events import EventTransform
from waltap.changes.events.event import Record
from waltap.changes.transactions.position import START, Position
from waltap.changes.transactions.transaction import (
    Batch,
    Heartbeat,
    Part,
    SnapshotRows,
    TransactionPart,
    events_in,
)
from waltap.encoders.json.event_format import JsonEventFormat
from waltap.encoders.json.properties import JsonProperties
from waltap.ports.specs import EventTransformSpec, TransformSpec
from waltap.ports.transforms.applied import transformed
from waltap_testing.installed import format_context
from waltap_testing.suite import RigSuite, assert_hidden_alike
from waltap_testing.workload import (
    ITEMS,
    NOTES,
    NOW,
    ScriptedWorkload,
    as_columns,
    life_of_a_row,
    lone_part,
    mixed,
    rare_parts,
    snapshot_and_stream,
)

# What a transform may change of a batch and of its parts; the engine works with everything else.
ITS_OWN = frozenset(("parts", "events", "records", "changes", "gaps", "rows", "relation"))


@dataclass(frozen=True, slots=True)
class TransformRig:
    """The transform under test: its spec, and properties for its factory."""

    spec: TransformSpec
    properties: object = None

    def build(self) -> Callable[[Batch], Batch]:
        return self.spec.factory(self.properties)


class TransformSuite(RigSuite):
    """Rules for every transform of changes."""

    needs = "a TransformRig"

    # --- positions ---

    def test_the_position_is_left_alone(self, rig: TransformRig) -> None:
        """A batch keeps its position, partition and the rest, else data is lost."""
        transform = rig.build()
        for given in _batches():
            # Read before the call: a transform may change the batch in place.
            before = _frame(given)
            assert _frame(transform(given)) == before

    def test_every_part_stays_in_its_place(self, rig: TransformRig) -> None:
        """Transactions keep begin, end and place, even without changes."""
        for part, original in _parts(rig.build()):
            assert _frame(part) == _frame(original)

    def test_an_empty_batch_stays_empty(self, rig: TransformRig) -> None:
        found = rig.build()(Batch(parts=[], position=Position(0x100), events=0))
        assert found.parts == []
        assert found.position == Position(0x100)
        assert found.events == 0

    # --- changes ---

    def test_changes_keep_their_order_and_none_is_invented(self, rig: TransformRig) -> None:
        """The output changes are a subsequence of the input changes."""
        for part, original in _parts(rig.build()):
            if isinstance(part, TransactionPart) and isinstance(original, TransactionPart):
                # An iterator is consumed by `in`, so a change out of order is not found.
                lsns = iter([change.lsn for change in original.changes])
                for change in part.changes:
                    assert change.lsn in lsns, f"{change} was not there, or came before"
            elif isinstance(part, SnapshotRows) and isinstance(original, SnapshotRows):
                assert len(part.rows) <= len(original.rows)

    def test_changes_keep_their_numbers(self, rig: TransformRig) -> None:
        transform = rig.build()
        for part, original in _parts(lambda batch: transformed(transform, batch)):
            if isinstance(part, TransactionPart) and isinstance(original, TransactionPart):
                had = iter(_numbered(original))
                for each in _numbered(part):
                    assert each in had, f"number and LSN {each} belong to no change"
                assert part.wire_count == original.wire_count

    def test_changes_that_come_in_stay_as_they_are(self, rig: TransformRig) -> None:
        """A change is replaced, never changed: sinks share it."""
        transform = rig.build()
        for given in _batches():
            changes = list(_changes(given))
            before = [_plain_change(change) for change in changes]
            transform(given)
            assert [_plain_change(change) for change in changes] == before

    def test_rows_fit_their_relation(self, rig: TransformRig) -> None:
        """Every tuple has a text, None or `MissingValue` per column."""
        for found in map(rig.build(), _batches()):
            for relation, row in _rows(found):
                assert len(row) == len(relation.columns), f"{relation.name}: {row}"
                for value in row:
                    assert isinstance(value, str | MissingValue | None), f"{relation.name}: {row}"

    def test_rows_of_a_snapshot_become_what_inserts_become(self, rig: TransformRig) -> None:
        """A value masked in the stream is masked in snapshots."""
        workload = ScriptedWorkload()
        for number in range(1, 4):
            workload.insert(ITEMS, number, "a name")
            workload.insert(NOTES, number, "a text")
        workload.commit()
        streamed = workload.batches(1_000, records=False)
        read = workload.snapshot([ITEMS, NOTES], records=False)
        transform = rig.build()
        one, other = (
            {
                (*(column.name for column in relation.columns), *row)
                for batch in batches
                for relation, row in _rows(transform(batch))
            }
            for batches in (streamed, read)
        )
        # A filter of operations may leave one of them out.
        assert one <= other or other <= one

    def test_a_value_is_hidden_everywhere(self, rig: TransformRig) -> None:
        """A value masked in new rows is masked in old ones."""
        transform = rig.build()
        assert_hidden_alike(
            [row for _, row in _rows(transform(Batch(parts=[*parts], position=START, events=1)))]
            for parts in life_of_a_row()
        )

    def test_a_relation_stays_the_same_object(self, rig: TransformRig) -> None:
        """A relation has one output relation, in every batch.

        Codecs are compiled per relation object.
        """
        transform = rig.build()
        met: dict[Relation, set[Relation]] = {}
        for given, again in zip(_batches(), _batches(), strict=True):
            came = {change.lsn: change for change in _changes(again)}
            for change in _changes(transform(given)):
                original = came[change.lsn]
                if isinstance(change, Truncate | LogicalMessage) or isinstance(
                    original, Truncate | LogicalMessage
                ):
                    continue
                met.setdefault(original.relation, set()).add(change.relation)
        for relation, made in met.items():
            assert len(made) == 1, f"{relation.name} became {len(made)} objects"

    # --- repeatable ---

    def test_the_same_batch_gives_the_same(self, rig: TransformRig) -> None:
        """Another transform object, as after a crash, returns equal batches."""
        one, other = rig.build(), rig.build()
        for given, again in zip(_batches(), _batches(), strict=True):
            assert _plain(one(given)) == _plain(other(again))

    def test_cutting_batches_otherwise_makes_no_difference(self, rig: TransformRig) -> None:
        workload = mixed(truncate=True)
        found: list[list[object]] = []
        for most in (1, 4, 1_000):
            transform = rig.build()
            found.append(
                [
                    _plain_change(change)
                    for batch in workload.batches(most, START, records=False)
                    for change in _changes(transform(batch))
                ]
            )
        assert found[0] == found[1] == found[2]

    def test_rows_that_come_as_columns_are_treated_alike(self, rig: TransformRig) -> None:
        """A `RowBlock` is treated like a list of rows (`SnapshotRows`)."""
        pytest.importorskip("pyarrow")
        one, other = rig.build(), rig.build()
        for given, again in zip(_batches(), _batches(), strict=True):
            assert _plain(one(as_columns(given))) == _plain(other(again))


def _batches() -> Iterator[Batch]:
    """Yield a snapshot, whole and divided transactions, and a message."""
    yield from snapshot_and_stream()
    message = LogicalMessage(0x5000000, transactional=False, prefix="app", content=b"\xff")
    position = Position(message.lsn)
    yield Batch(parts=[lone_part(message), Heartbeat(ts=1)], position=position, events=1)
    rare = rare_parts()
    yield Batch(
        parts=rare,
        position=Position(0x6000020),
        partition="tablets 0x0000-0x7FFF",
        number=7,
        events=events_in(rare),
        redelivers=("16B3-1#1",),
    )


def _parts(transform: Callable[[Batch], Batch]) -> Iterator[tuple[Part, Part]]:
    # A transform may change its batch in place: the second, equal batch is the reference.
    for given, again in zip(_batches(), _batches(), strict=True):
        parts = transform(given).parts
        assert len(parts) == len(again.parts)
        yield from zip(parts, again.parts, strict=True)


def _frame(part: Part | Batch) -> dict[str, object]:
    """Return the fields that no transform may change."""
    names = [field for field in part.__struct_fields__ if field not in ITS_OWN]
    return {"is": type(part).__name__, **{name: getattr(part, name) for name in names}}


def _numbered(part: TransactionPart) -> list[tuple[int, int]]:
    lsns = [change.lsn for change in part.changes]
    return list(zip(part.numbers(), lsns, strict=True))


def _changes(batch: Batch) -> Iterator[Change]:
    for part in batch.parts:
        if isinstance(part, TransactionPart):
            yield from part.changes


def _rows(batch: Batch) -> Iterator[tuple[Relation, tuple[object, ...]]]:
    for part in batch.parts:
        if isinstance(part, SnapshotRows):
            for row in part.rows:
                yield part.relation, row
    for change in _changes(batch):
        if not isinstance(change, Truncate | LogicalMessage):
            for image in (getattr(change, "new", ()), getattr(change, "old", ())):
                if image:
                    yield change.relation, image


def _plain(batch: Batch) -> object:
    rows = [(relation.name, relation.topic, row) for relation, row in _rows(batch)]
    return batch.position, batch.events, rows, [_plain_change(c) for c in _changes(batch)]


def _plain_change(change: Change) -> object:
    values = []
    for name in change.__struct_fields__:
        value = getattr(change, name)
        if isinstance(value, Relation):
            value = (value.name, value.topic)
        elif name == "relations":
            value = [(relation.name, relation.topic) for relation in value]
        values.append(value)
    return type(change).__name__, values


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
        assert _plain_records(_records(rig.format())) == _plain_records(_records(rig.format()))

    def test_cutting_batches_otherwise_makes_no_difference(self, rig: EventTransformRig) -> None:
        """The limits of batches do not change the result."""
        workload = mixed(truncate=True)
        found = []
        for most in (1, 4, 1_000):
            form = rig.format()
            batches = workload.batches(most, START, records=False)
            found.append(
                [r for batch in batches for r in _plain_records(form.render(batch.parts, NOW))]
            )
        assert found[0] == found[1] == found[2]

    def test_a_value_is_hidden_everywhere(self, rig: EventTransformRig) -> None:
        """A masked value is masked in snapshots and ``before``, too."""
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
    """Yield records of a snapshot and of every operation."""
    for batch in snapshot_and_stream():
        yield from form.render(batch.parts, NOW)
    yield from form.render(rare_parts(), NOW)


def _plain_records(records: Iterable[Record]) -> list[tuple[object, ...]]:
    return [(r.topic, r.key, r.value, r.headers) for r in records]
