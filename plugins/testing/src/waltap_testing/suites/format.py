"""Conformance tests for record formats.

Subclass `FormatSuite` and define the fixture ``rig``:

    class TestMyFormat(FormatSuite):
        @pytest.fixture
        def rig(self):
            return FormatRig(MY_SPEC, MyProperties(), parse=my_parser)
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pytest

from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.decode.message import (
    Change,
    Delete,
    Insert,
    LogicalMessage,
    OldTuple,
    Truncate,
    Update,
)
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, Tuple
from waltap.changes.events import ChangeEvent
from waltap.changes.events.event import Record
from waltap.changes.transactions.transaction import Heartbeat, Part, SnapshotRows, TransactionPart
from waltap.encoders.format.format import Format, FormatContext
from waltap.encoders.format.record_stage import RecordStep
from waltap.encoders.format.record_transform import ConnectRecord
from waltap.ports.specs import FormatSpec
from waltap_testing.installed import format_context
from waltap_testing.suite import RigSuite
from waltap_testing.suites.notification_channel import NOTIFICATIONS
from waltap_testing.workload import (
    COMMIT_TS,
    HIDDEN,
    ITEMS,
    NOTES,
    NOW,
    TEXTS,
    as_block,
    insert_block,
    lone_part,
    mixed,
    rare_parts,
    transaction_run,
)

SOME_TEXTS = (*TEXTS.values(), None)
# The OIDs of tables that come and go.
GONE = range(20_000, 20_040)


def _leaves(value: object) -> Iterator[object]:
    """Yield every name and scalar in a parsed value."""
    if isinstance(value, Mapping):
        for name, part in value.items():
            yield str(name)
            yield from _leaves(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    else:
        yield value


@dataclass(frozen=True, slots=True)
class FormatRig:
    """The record format under test."""

    spec: FormatSpec
    properties: object
    # Parse the bytes of a key, value or header, and raise ValueError if they are invalid. Use
    # another library than the format does.
    parse: Callable[[bytes], object]
    # Return whether a parsed value contains a text.
    holds: Callable[[object, str], bool] = lambda value, text: text in _leaves(value)
    # Properties of `CaptureProperties`.
    capture: Mapping[str, object] = field(default_factory=dict)
    # Changes the rest of the format's context.
    context: Callable[[FormatContext], FormatContext] = lambda context: context

    def build(self) -> Format:
        properties = CaptureProperties.model_validate({"topic.prefix": "server", **self.capture})
        return self.spec.factory(self.properties, self.context(format_context(properties)))

    def with_context(self, **changes: Any) -> "FormatRig":
        """Return the rig with other fields of the format's context."""
        return replace(self, context=lambda given: replace(self.context(given), **changes))


class FormatSuite(RigSuite):
    """Rules for every record format."""

    needs = "a FormatRig"

    # --- bytes ---

    def test_everything_is_valid(self, rig: FormatRig) -> None:
        """Keys, values and headers of every part kind can be parsed."""
        records = rig.build().render(every_part(), NOW)
        assert records
        for record in records:
            _assert_valid(rig, record)

    def test_the_same_parts_give_the_same_bytes(self, rig: FormatRig) -> None:
        one = rig.build()
        first = _plain(one.render(every_part(), NOW))
        assert _plain(one.render(every_part(), NOW)) == first
        assert _rendered(rig, every_part()) == first

    def test_parts_may_come_in_any_number_of_calls(self, rig: FormatRig) -> None:
        """The limits of batches do not change the records."""
        one, pieces = rig.build(), []
        for part in every_part():
            pieces += _plain(one.render([part], NOW))
        assert pieces == _rendered(rig, every_part())

    def test_parts_are_left_as_they_are(self, rig: FormatRig) -> None:
        parts = every_part()
        before = repr(parts)
        rig.build().render(parts, NOW)
        assert repr(parts) == before

    @pytest.mark.parametrize("count", [1, 2, 3, 50])
    def test_rows_that_come_as_columns_give_the_same_bytes(
        self, rig: FormatRig, count: int
    ) -> None:
        """A `RowBlock` gives the same bytes as a list (`SnapshotRows`)."""
        pytest.importorskip("pyarrow")
        rows = [(str(n), str(-n), SOME_TEXTS[n % len(SOME_TEXTS)]) for n in range(count)]
        found = []
        for form in (rows, as_block(rows)):
            part = _rows()
            part.rows = form
            found += [_rendered(rig, [part, part]), _rendered(rig, [part]) * 2]
        assert all(each == found[0] for each in found)

    @pytest.mark.parametrize("count", [1, 2, 50])
    def test_inserts_that_come_as_columns_give_the_same_bytes(
        self, rig: FormatRig, count: int
    ) -> None:
        """An `InsertBlock` gives the same bytes as a list (`TransactionPart`)."""
        pytest.importorskip("pyarrow")
        rows = [(str(n), str(-n), SOME_TEXTS[n % len(SOME_TEXTS)]) for n in range(count)]
        inserts = [Insert(ITEMS, 8 * n, row) for n, row in enumerate(rows)]
        listed, block = _transaction(*inserts), _transaction()
        block.changes = insert_block(ITEMS, inserts)
        other = _transaction(Delete(ITEMS, 9, inserts[0].new, OldTuple.FULL))
        for others in ([], [other]):
            columns = _rendered(rig, [block, block, *others])
            assert columns == _rendered(rig, [listed, listed, *others])

    @pytest.mark.parametrize("previous", [None, 56])
    def test_transactions_that_come_as_columns_give_the_same_bytes(
        self, rig: FormatRig, previous: int | None
    ) -> None:
        """A `TransactionRun` gives the same bytes as its parts (`Batch.parts`)."""
        pytest.importorskip("pyarrow")
        parts = []
        for n, text in enumerate(SOME_TEXTS):
            part = _transaction(Insert(ITEMS, 8 * n, (str(n), str(-n), text)))
            part.xid, part.previous_end_lsn = 3 + n, previous
            part.commit_lsn, part.end_lsn, part.commit_ts = 64 + n, 72 + n, COMMIT_TS + 1000 * n
            previous = part.end_lsn
            parts.append(part)
        for some in (slice(None), slice(2, 5)):
            assert _rendered(rig, transaction_run(parts)[some]) == _rendered(rig, parts[some])

    def test_nothing_gives_nothing(self, rig: FormatRig) -> None:
        assert rig.build().render([], NOW) == []

    # --- events ---

    def test_a_transform_that_changes_nothing_changes_no_byte(self, rig: FormatRig) -> None:
        if not rig.spec.takes_events:
            pytest.skip("makes no events for transforms")
        met: list[ChangeEvent] = []

        def same(events: list[ChangeEvent]) -> list[ChangeEvent]:
            met.extend(events)
            return events

        plain = _rendered(rig, every_part())
        by_events = rig.with_context(transforms=[("same", same)])
        assert _rendered(by_events, every_part()) == plain
        assert {"c", "u", "d", "r"} <= {event.op for event in met}

    def test_a_transform_of_records_that_changes_nothing_changes_no_byte(
        self, rig: FormatRig
    ) -> None:
        if not rig.spec.takes_record_transforms:
            pytest.skip("hands no records to transforms")
        met: list[ConnectRecord] = []

        def same(records: list[ConnectRecord]) -> list[ConnectRecord]:
            met.extend(records)
            return list(records)

        plain = _rendered(rig, every_part())
        staged = rig.with_context(record_steps=[RecordStep(label="same", transform=same)])
        assert _rendered(staged, every_part()) == plain
        assert len(met) == len(plain)

    # --- keys, values, tombstones ---

    def test_a_row_has_one_key_all_its_life(self, rig: FormatRig) -> None:
        """A row's records have one key, unlike other rows' keys.

        They are create, update, snapshot and delete.
        """
        render = rig.build()
        keys = [
            _only(render, Insert(ITEMS, 16, ("1", "1", "a"))).key,
            _only(render, Update(ITEMS, 17, ("1", "2", "b"))).key,
            render.render([_rows(("1", "3", "c"))], NOW)[0].key,
            _records(render, Delete(ITEMS, 18, ("1", ABSENT, ABSENT), OldTuple.KEY))[0].key,
        ]
        assert keys[0] is not None
        assert keys == keys[:1] * 4
        assert _only(render, Insert(ITEMS, 19, ("2", "1", "a"))).key != keys[0]

    def test_a_key_has_every_column_of_the_primary_key(self, rig: FormatRig) -> None:
        both, render = ("id", "serial"), rig.build()
        table = msgspec.structs.replace(ITEMS, table="pairs", oid=16498, primary_key=both)
        rows = [("1", "1", "a"), ("1", "2", "a"), ("2", "1", "a")]
        assert len({_only(render, Insert(table, 16, row)).key for row in rows}) == 3

    def test_a_tombstone_follows_its_delete_alone(self, rig: FormatRig) -> None:
        """A delete has at most one tombstone, with its key, last."""
        render = rig.build()
        deleted = _records(render, Delete(ITEMS, 16, ("1", ABSENT, ABSENT), OldTuple.KEY))
        assert deleted
        assert deleted[0].value is not None
        assert len(deleted) <= 2
        if len(deleted) == 2:
            assert deleted[1].value is None
            assert deleted[1].key == deleted[0].key
        for change in (Insert(ITEMS, 17, ("1", "1", "a")), Update(ITEMS, 18, ("1", "2", "b"))):
            assert _only(render, change).value is not None

    def test_a_changed_key_ends_the_old_row_and_begins_the_new(self, rig: FormatRig) -> None:
        """A key's update has the old key first, the new last."""
        render = rig.build()
        old = _only(render, Insert(ITEMS, 16, ("1", "1", "a"))).key
        new = _only(render, Insert(ITEMS, 17, ("2", "1", "a"))).key
        update = Update(ITEMS, 18, ("2", "2", "a"), ("1", ABSENT, ABSENT), OldTuple.KEY)
        records = _records(render, update)
        assert records[0].key == old
        assert records[-1].key == new
        assert records[-1].value is not None

    def test_every_change_of_a_row_gives_a_record(self, rig: FormatRig) -> None:
        """Whatever the old row had, and however it was read."""
        render, parts = rig.build(), rare_parts()
        for part in parts:
            if isinstance(part, SnapshotRows):
                assert len(render.render([part], NOW)) >= len(part.rows), part.kind
            elif isinstance(part, TransactionPart):
                for change in part.changes:
                    if isinstance(change, Insert | Update | Delete):
                        assert _records(render, change), change

    def test_a_truncate_is_one_of_each_table(self, rig: FormatRig) -> None:
        capture = {**rig.capture, "skipped.operations": "none"}
        render = replace(rig, capture=capture).build()
        topics = [
            [record.topic for record in _records(render, Truncate(tables, 16))]
            for tables in ((ITEMS, NOTES), (ITEMS,), (NOTES,))
        ]
        assert topics[1]
        assert topics[0] == topics[1] + topics[2]

    def test_logical_messages_give_records(self, rig: FormatRig) -> None:
        """A logical message is an event with its content."""
        render, values = rig.build(), []
        for content in (b"one", b"other"):
            message = LogicalMessage(16, transactional=True, prefix="app", content=content)
            part = msgspec.structs.replace(_transaction(), changes=[message])
            values += [record.value for record in render.render([part], NOW)]
        assert len(values) == 2
        # A format that takes changes alone, as CloudEvents, writes none.
        assert values[0] is None or values[0] != values[1]

    def test_a_forgotten_relation_gives_the_same_bytes(self, rig: FormatRig) -> None:
        """`forget` drops the state of a relation, which may be unknown."""
        render, change = rig.build(), Insert(ITEMS, 16, ("1", "1", "a"))
        render.forget(ITEMS.oid)
        before = _plain(_records(render, change))
        render.forget(ITEMS.oid)
        assert _plain(_records(render, change)) == before

    def test_forgotten_relations_do_not_stay_in_memory(self, rig: FormatRig) -> None:
        """The last ones may, in a cache with a bound."""
        render = rig.build()
        for oid in GONE:
            table = msgspec.structs.replace(ITEMS, table=f"gone{oid}", oid=oid)
            _records(render, Insert(table, 16, ("1", "1", "a")))
            render.forget(oid)
        gc.collect()
        remaining = [
            each for each in gc.get_objects() if type(each) is Relation and each.oid in GONE
        ]
        assert len(remaining) < 20, f"{len(remaining)} of 40 dropped tables are still known"

    def test_tables_have_different_topics(self, rig: FormatRig) -> None:
        other = msgspec.structs.replace(ITEMS, table="others", oid=16499)
        render = rig.build()
        topics = [
            _only(render, Insert(table, 16, ("1", "1", "a"))).topic
            for table in (ITEMS, other, ITEMS)
        ]
        assert topics[0] == topics[2] != topics[1]

    # --- values ---

    @pytest.mark.parametrize("name", list(TEXTS))
    def test_any_text_is_rendered_faithfully(self, rig: FormatRig, name: str) -> None:
        """Also a text that is too long for some destinations."""
        text = TEXTS[name] * (10 if name == "long" else 1)
        render, row = rig.build(), ("1", "1", text)
        for record in (
            _only(render, Insert(ITEMS, 16, row)),
            _only(render, Update(ITEMS, 17, row)),
            *render.render([_rows(row)], NOW),
        ):
            _assert_valid(rig, record)
            assert record.value is not None
            assert rig.holds(rig.parse(record.value), text)

    @pytest.mark.parametrize("name", [name for name in TEXTS if name not in ("empty", "long")])
    def test_any_identifier_is_rendered_validly(self, rig: FormatRig, name: str) -> None:
        odd, (key, *others) = TEXTS[name], ITEMS.columns
        columns = (key, *(msgspec.structs.replace(c, name=c.name + odd) for c in others))
        table = msgspec.structs.replace(ITEMS, table=odd, columns=columns)
        for record in _records(rig.build(), Insert(table, 16, ("1", "1", "a"))):
            _assert_valid(rig, record)

    def test_null_and_unchanged_differ(self, rig: FormatRig) -> None:
        render = rig.build()
        null = _only(render, Update(ITEMS, 16, ("1", "2", None)))
        unchanged = _only(render, Update(ITEMS, 16, ("1", "2", UNCHANGED)))
        empty = _only(render, Update(ITEMS, 16, ("1", "2", "")))
        assert len({null.value, unchanged.value, empty.value}) == 3

    def test_a_schema_change_in_mid_batch_is_followed(self, rig: FormatRig) -> None:
        wider = msgspec.structs.replace(
            ITEMS,
            columns=(*ITEMS.columns, msgspec.structs.replace(ITEMS.columns[2], name="colour")),
        )
        old, new = Insert(ITEMS, 16, ("1", "1", "a")), Insert(wider, 17, ("2", "2", "b", "green"))
        # The old shape comes again after the new one: a codec must not be kept by table name.
        first, second, third = rig.build().render([_transaction(old, new), _transaction(old)], NOW)
        for record in (first, second, third):
            _assert_valid(rig, record)
        assert second.value is not None
        assert third.value is not None
        assert rig.holds(rig.parse(second.value), "green")
        assert not rig.holds(rig.parse(third.value), "colour")

    # --- what a profile asks for ---

    @pytest.mark.parametrize("name", list(HIDDEN))
    def test_a_hidden_value_is_nowhere(self, rig: FormatRig, name: str) -> None:
        """No record has a value of an excluded or masked column."""
        capture = {**rig.capture, **HIDDEN[name]}
        render, old = replace(rig, capture=capture).build(), ("1", "1", "secret one")
        records = [
            *render.render([_rows(old)], NOW),
            *_records(render, Insert(ITEMS, 16, old)),
            *_records(render, Update(ITEMS, 17, ("1", "2", "secret two"), old, OldTuple.FULL)),
            *_records(render, Update(ITEMS, 18, ("2", "2", "secret two"), old, OldTuple.FULL)),
            *_records(render, Delete(ITEMS, 19, old, OldTuple.FULL)),
        ]
        assert records
        shown = [part for r in records for part in (r.key, r.value, *(v for _, v in r.headers))]
        for text in filter(None, shown):
            assert b"secret" not in text, f"{name}: {text!r}"
            assert not rig.holds(rig.parse(text), old[2]), name

    def test_a_column_that_is_left_out_moves_no_other(self, rig: FormatRig) -> None:
        """The column behind it has its own value."""
        capture = {**rig.capture, "column.exclude.list": r"public\.items\.serial"}
        render, row = replace(rig, capture=capture).build(), ("1", "2", "a name")
        for record in (
            _only(render, Insert(ITEMS, 16, row)),
            _only(render, Update(ITEMS, 17, row)),
            *render.render([_rows(row)], NOW),
        ):
            assert record.value is not None
            assert rig.holds(rig.parse(record.value), "a name")

    def test_a_topic_is_the_one_of_a_transform_else_of_a_plugin(self, rig: FormatRig) -> None:
        """`Relation.topic` precedes `choose_topic`, which precedes the strategy."""
        # In a registry a subject has schemas of one kind.
        name = f"{rig.capture.get('topic.prefix', 'server')}.chosen"
        chosen = rig.with_context(choose_topic=lambda _relation: name).build()
        routed = msgspec.structs.replace(ITEMS, topic=f"{name}.routed")
        for table, topic in ((ITEMS, name), (routed, f"{name}.routed")):
            read = msgspec.structs.replace(_rows(("1", "1", "a")), relation=table)
            records = chosen.render([read, _transaction(Insert(table, 16, ("1", "1", "a")))], NOW)
            assert {record.topic for record in records} == {topic}

    def test_what_a_profile_leaves_out_gives_no_record(self, rig: FormatRig) -> None:
        """Skipped operations, tombstones and prefixes of messages."""
        old, new = ("1", "1", "a"), ("1", "2", "b")
        message = LogicalMessage(16, transactional=True, prefix="app", content=b"one")
        left_out: list[tuple[dict[str, object], Change, int]] = [
            ({"skipped.operations": "c"}, Insert(ITEMS, 16, old), 0),
            ({"skipped.operations": "u"}, Update(ITEMS, 16, new), 0),
            ({"skipped.operations": "d"}, Delete(ITEMS, 16, old, OldTuple.FULL), 0),
            ({"skipped.operations": "t"}, Truncate((ITEMS,), 16), 0),
            ({"tombstones.on.delete": False}, Delete(ITEMS, 16, old, OldTuple.FULL), 1),
            ({"message.prefix.exclude.list": "app"}, message, 0),
            ({"table.exclude.list": r"public\.items"}, Insert(ITEMS, 16, old), 0),
        ]
        for capture, change, count in left_out:
            render = replace(rig, capture={**rig.capture, **capture}).build()
            assert len(_records(render, change)) == count, capture

    # --- source and notifications ---

    def test_the_oldest_transaction_of_the_slot_is_reported(self, rig: FormatRig) -> None:
        """``source.xmin`` is there only if the source reported it.

        The test is skipped for a format that does not name the database: it has no description of
        the source.
        """
        part = _transaction(Insert(ITEMS, 40, ("1", "2", "a")))
        (without,) = rig.build().render([part], NOW)
        held = [without.value or b"", *(value for _, value in without.headers)]
        if not any(rig.holds(rig.parse(text), "shop") for text in held if text):
            pytest.skip("says nothing about the source")
        part.xmin = 987_654_321
        (reported,) = rig.build().render([part], NOW)
        assert reported != without
        texts = [reported.value or b"", *(value for _, value in reported.headers)]
        if not any(b"987654321" in text for text in texts):
            leaves = [leaf for text in texts for leaf in _leaves(rig.parse(text))]
            assert 987_654_321 in leaves, leaves

    def test_notifications_are_records_of_their_topic(self, rig: FormatRig) -> None:
        """Notifications become records in order, with id, type and data.

        The contract is `Format.notifications`.
        """
        # In a registry a subject has schemas of one kind.
        topic = f"{rig.capture.get('topic.prefix', 'server')}.notified"
        records = rig.build().notifications(NOTIFICATIONS, topic)
        if not records:
            pytest.skip("has no notifications")
        assert [record.topic for record in records] == [topic] * len(NOTIFICATIONS)
        for record, notification in zip(records, NOTIFICATIONS, strict=True):
            _assert_valid(rig, record)
            assert record.key is not None
            assert rig.holds(rig.parse(record.key), notification.identifier)
            if record.value is None:
                continue  # a format that takes changes alone, as CloudEvents
            value = rig.parse(record.value)
            data = notification.additional_data or {}
            for text in (notification.identifier, notification.kind, *data, *data.values()):
                assert rig.holds(value, text), text
        again = rig.build().notifications(NOTIFICATIONS, topic)
        assert _plain(again) == _plain(records)

    def test_no_notification_gives_no_record(self, rig: FormatRig) -> None:
        assert rig.build().notifications([], "notified") == []


def every_part() -> list[Part]:
    """Return parts of every kind, always the same."""
    message = LogicalMessage(0x5000, transactional=False, prefix="app", content=b"\x00hello")
    return [
        _rows(("1", "1", "snapshot"), ("2", "2", None)),
        *mixed(truncate=True).parts,
        lone_part(message),
        Heartbeat(ts=1_767_225_600_500),
        *rare_parts(),
    ]


def _rows(*rows: Tuple) -> SnapshotRows:
    return SnapshotRows(
        relation=ITEMS,
        rows=list(rows),
        ts=COMMIT_TS,
        lsn=0x900,
        xid=700,
        first_marker="first",
        last_marker="last",
    )


def _transaction(*changes: Change) -> TransactionPart:
    return TransactionPart(
        xid=7, begin_lsn=8, commit_lsn=64, commit_ts=COMMIT_TS, end_lsn=72, changes=list(changes)
    )


def _records(render: Format, change: Change) -> Sequence[Record]:
    return render.render([_transaction(change)], NOW)


def _only(render: Format, change: Change) -> Record:
    records = _records(render, change)
    assert len(records) == 1, f"{type(change).__name__} gives {len(records)} records, not one"
    return records[0]


def _plain(records: Iterable[Record]) -> list[tuple[object, ...]]:
    return [msgspec.structs.astuple(record) for record in records]


def _rendered(rig: FormatRig, parts: Sequence[Part]) -> list[tuple[object, ...]]:
    return _plain(rig.build().render(parts, NOW))


def _assert_valid(rig: FormatRig, record: Record) -> None:
    for what, data in (("key", record.key), ("value", record.value), *record.headers):
        if data is None:
            continue
        assert isinstance(data, bytes), f"{what} of a record for {record.topic} is no bytes"
        try:
            rig.parse(data)
        except ValueError as wrong:
            pytest.fail(f"{what} of a record for {record.topic} is not valid: {wrong}: {data!r}")
    assert isinstance(record.topic, str)
    assert record.topic
