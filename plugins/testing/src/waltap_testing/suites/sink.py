"""Conformance tests for sinks.

Subclass `SinkSuite` and define the fixture ``new_rig``:

    class TestMySink(SinkSuite):
        @pytest.fixture
        def new_rig(self):
            def make(folder):
                path = folder / "events"
                return SinkRig(MY_SPEC, MyProperties(path=path), lambda: read_my_file(path))
            return make

Crashes are real: the sink runs in a forked process that is killed at each step. A new
sink then resumes the delivery as an engine would. The suite derives the guarantee from the
contents of the destination and compares it with `SinkCapabilities`.
"""

import contextlib
import datetime as dt
import threading
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from functools import partial
from pathlib import Path

import pytest

from waltap.changes.events.event import Record
from waltap.changes.transactions.position import SOLE, START, Position, Positions
from waltap.changes.transactions.transaction import Batch
from waltap.errors import RetryVerdict, SinkError, WaltapError
from waltap.ports.sink.roles import stored_position_of
from waltap.ports.sink.sink import Sink
from waltap_testing.crash import ChildOutcome, CrashChild, KillPoint
from waltap_testing.sinks.crash import (
    SinkCrash,
    bare,
    crashes,
    crashes_of_open,
    deliver,
    failing_sync,
    full_disk,
    report_promise,
    resume,
    run,
    write_and_report,
    written,
)
from waltap_testing.sinks.losses import NoticesLosses
from waltap_testing.sinks.rig import (
    DeliveredChange,
    SinkRig,
    assert_complete,
    parsed,
    sole,
    values_of,
)
from waltap_testing.sinks.rules import (
    KINDS,
    KINDS_ROW,
    AppliesChanges,
    RefusesSingleRecords,
    SnapshotsGoOn,
    TakesRedeliveries,
    filled,
)
from waltap_testing.suite import FolderRigSuite
from waltap_testing.workload import (
    ITEMS,
    NOTES,
    SCENARIOS,
    TEXTS,
    ScriptedWorkload,
    as_columns,
    inserts_as_columns,
    large_transaction,
    mixed,
    relation,
    transactions_as_columns,
)

__all__ = ["DeliveredChange", "SinkRig", "SinkSuite"]

# The values of `KINDS_ROW`, as a typed destination returns them.
KINDS_VALUES: Mapping[str, object] = {
    "id": 1,
    "serial": 1,
    "flag": True,
    "small": -7,
    "ratio": 0.1,
    "price": Decimal("12345.60"),
    "name": "x",
    "data": b"\x00\xff",
    "day": dt.date(2024, 2, 29),
    "at": dt.datetime(2024, 2, 29, 12, 30, tzinfo=dt.UTC),
    "note": None,
}
# The table ``items`` after ALTER TABLE … ADD COLUMN: the same OID.
WIDER = relation(
    "items",
    [("id", "int4"), ("serial", "int8"), ("name", "text"), ("colour", "text")],
    oid=ITEMS.oid,
)
# Name → number of rows in each of three tables.
SNAPSHOTS: Mapping[str, tuple[int, int, int]] = {
    "the last tables are empty": (5, 0, 0),
    "the first table is empty": (0, 4, 3),
    "a table between is empty": (5, 0, 1),
    "all tables are empty": (0, 0, 0),
    "one row in all": (0, 1, 0),
    "tables in pieces": (7, 4, 3),
    "no tables": (0, 0, 0),
}
# Sizes of a file in bytes; most are one below a power of two, where blocks end.
TORN_AT = (0, 1, 7, 63, 511, 4095, 16383)


class LeaseGone(Exception):
    """The error of `SinkContext.may_write` in the suite."""


class SinkSuite(
    SnapshotsGoOn,
    AppliesChanges,
    RefusesSingleRecords,
    TakesRedeliveries,
    NoticesLosses,
    FolderRigSuite,
):
    """Rules for every sink."""

    needs = "a SinkRig with an empty destination"

    @pytest.fixture
    def sink(self, rig: SinkRig, tmp_path: Path) -> Iterator[Sink]:
        """Return an open sink; the test's end closes it."""
        sink = rig.build(tmp_path)
        assert sink.open() is None, "an empty destination has no position"
        yield sink
        sink.close()

    # --- positions ---

    def test_nothing_is_promised_before_the_first_write(self, sink: Sink) -> None:
        assert sink.flush() is None

    def test_flush_promises_the_last_whole_transaction(self, sink: Sink) -> None:
        last_promised: Position | None = None
        for batch in large_transaction().batches(3, records=sink.capabilities.records):
            sink.write(batch)
            promised = sole(sink.flush())
            if batch.ends_transaction:
                assert promised == batch.position
                last_promised = promised
            else:
                # Inside a transaction it may promise an earlier position.
                assert promised is None or promised <= batch.position
                assert last_promised is None or (promised is not None and promised >= last_promised)

    def test_an_empty_batch_moves_the_position(self, sink: Sink) -> None:
        """An empty batch moves the position: filters drop changes."""
        position = Position(0x2000000)
        sink.write(bare(sink, position))
        assert sole(sink.flush()) == position

    def test_a_batch_without_a_partition_is_promised_without_one(self, sink: Sink) -> None:
        """A source with one partition needs no partition name."""
        position = Position(0x2000000)
        sink.write(bare(sink, position))
        assert Positions.of(sink.flush()) == {SOLE: position}

    def test_positions_of_two_partitions_keep_apart(self, rig: SinkRig, tmp_path: Path) -> None:
        sink = rig.build(tmp_path)
        if not sink.capabilities.partitions:
            pytest.skip("takes one partition, and says so")
        workload, expected = mixed(truncate=False), dict[str, Position]()
        assert sink.open() is None
        for number, batch in enumerate(workload.batches(4, records=sink.capabilities.records)):
            batch.partition = ("one", "other")[number % 2]
            sink.write(batch)
            expected[batch.partition] = batch.position
            if number % 3 == 0:
                assert Positions.of(sink.flush()) == expected
        assert Positions.of(sink.flush()) == expected
        sink.close()
        assert_complete(rig, sink.capabilities, workload)

    def test_close_may_be_called_twice(self, rig: SinkRig, tmp_path: Path) -> None:
        sink = rig.opened(tmp_path)
        sink.close()
        sink.close()

    # --- data ---

    @pytest.mark.parametrize("name", list(SCENARIOS))
    def test_everything_flushed_is_there_once_and_in_order(
        self, rig: SinkRig, tmp_path: Path, name: str
    ) -> None:
        sink = rig.build(tmp_path)
        if name == "truncate" and not sink.capabilities.truncate:
            pytest.skip("declares that it does not apply truncates")
        workload = SCENARIOS[name]()
        deliver(sink, workload.batches(50, records=sink.capabilities.records))
        assert_complete(rig, sink.capabilities, workload)

    def test_a_snapshot_is_followed_by_the_stream(self, rig: SinkRig, tmp_path: Path) -> None:
        """Changes of the stream follow the snapshot's closing, empty batch."""
        workload, sink = filled(5, 5, 0), rig.opened(tmp_path)
        snapshot = workload.snapshot([ITEMS, NOTES], records=sink.capabilities.records)
        written(sink, snapshot, each=True)
        workload.update(ITEMS, 1, "new")
        workload.delete(NOTES, 2)
        workload.commit()
        written(sink, workload.batches(10, records=sink.capabilities.records))
        sink.close()
        assert_complete(rig, sink.capabilities, workload)

    @pytest.mark.parametrize("name", list(SNAPSHOTS))
    @pytest.mark.parametrize("each", [True, False], ids=["flushed each", "flushed once"])
    def test_a_snapshot_is_whole_whichever_tables_are_empty(
        self, rig: SinkRig, tmp_path: Path, name: str, *, each: bool
    ) -> None:
        """Each row is there once, and the stream follows (`SnapshotRows`)."""
        sink = rig.build(tmp_path)
        if name == "no tables":
            workload, tables = ScriptedWorkload(), []
        else:
            workload, tables = filled(*SNAPSHOTS[name]), [ITEMS, NOTES, KINDS]
        sink.open()
        snapshot = workload.snapshot(tables, 2, records=sink.capabilities.records)
        assert written(sink, snapshot, each=each) == snapshot[-1].position
        workload.insert(ITEMS, 101, "streamed")
        workload.commit()
        streamed = list(workload.batches(10, records=sink.capabilities.records))
        assert written(sink, streamed) == streamed[-1].position
        sink.close()
        assert_complete(rig, sink.capabilities, workload)

    def test_a_new_snapshot_comes_behind_what_was_streamed(
        self, rig: SinkRig, tmp_path: Path
    ) -> None:
        """A snapshot replaces current rows and extends a history."""
        workload, sink = ScriptedWorkload(), rig.build(tmp_path)
        records = sink.capabilities.records
        for number in range(1, 6):
            workload.insert(ITEMS, number, "streamed")
            workload.insert(NOTES, number, "streamed")
        workload.update(ITEMS, 1, "updated")
        workload.delete(NOTES, 2)
        workload.commit()
        deliver(sink, workload.batches(1_000, records=records))
        end = Position(workload.parts[-1].end_lsn)
        sink = rig.opened(tmp_path, has_offset=True)
        written(sink, workload.snapshot([ITEMS, NOTES], 2, records=records), each=True)
        workload.update(ITEMS, 3, "streamed again")
        workload.commit()
        written(sink, workload.batches(10, end, records=records))
        sink.close()
        assert_complete(rig, sink.capabilities, workload)

    def test_a_snapshot_of_another_server_is_followed_by_its_stream(
        self, rig: SinkRig, tmp_path: Path
    ) -> None:
        """LSNs of two servers do not compare; new ones may be lower."""
        workload, sink = mixed(truncate=False), rig.build(tmp_path)
        records = sink.capabilities.records
        deliver(sink, workload.batches(1_000, records=records))
        workload.move_to_another_server()
        sink = rig.opened(tmp_path, has_offset=True)
        first, *others = workload.snapshot([ITEMS, NOTES], 2, records=records)
        written(sink, [first])
        assert not Positions.of(stored_position_of(sink)), "it is the position of the other server"
        assert written(sink, others, each=True) == first.position
        workload.insert(ITEMS, 101, "streamed")
        workload.commit()
        streamed = list(workload.batches(10, first.position, records=records))
        assert written(sink, streamed) == streamed[-1].position
        sink.close()
        assert "streamed" in {values.get("name") for values in map(values_of, rig.read_back())}

    def test_a_stream_without_an_offset_is_new(self, rig: SinkRig, tmp_path: Path) -> None:
        """Without `SinkContext.has_offset` a position is of another history.

        So it is after `waltap offsets clear`, and the next start may read no tables.
        """
        workload, sink = mixed(truncate=False), rig.build(tmp_path)
        records = sink.capabilities.records
        deliver(sink, workload.batches(1_000, records=records))
        workload.move_to_another_server()
        workload.insert(ITEMS, 101, "streamed")
        workload.commit()
        (batch,) = workload.batches(10, records=records)
        sink = rig.opened(tmp_path)
        assert written(sink, [batch]) == batch.position, "it passes over a new stream"
        sink.close()
        assert "streamed" in {values.get("name") for values in map(values_of, rig.read_back())}

    def test_a_snapshot_may_come_as_columns(self, rig: SinkRig, tmp_path: Path) -> None:
        """Rows and records may be a `RowBlock` and a `RecordBlock`."""
        pytest.importorskip("pyarrow")
        sink, workload = rig.build(tmp_path), filled(9, 4, 1)
        typed = sink.capabilities.typed_columns
        batches = workload.snapshot([ITEMS, NOTES, KINDS], 3, records=sink.capabilities.records)
        # Few rows arrive as lists: pieces of both forms alternate.
        forms = [
            as_columns(b, typed=typed and number % 3 == 2) if number % 3 != 1 else b
            for number, b in enumerate(batches)
        ]
        assert deliver(sink, forms) == batches[-1].position
        assert_complete(rig, sink.capabilities, workload)

    def test_inserts_may_come_as_columns(self, rig: SinkRig, tmp_path: Path) -> None:
        """A part's changes may be an `InsertBlock`, records `MixedRecords`."""
        pytest.importorskip("pyarrow")
        sink, workload = rig.build(tmp_path), ScriptedWorkload()
        for transaction in range(1, 6):
            table = NOTES if transaction == 3 else ITEMS
            for number in range(1, 9):
                workload.insert(table, 100 * transaction + number, "new")
            if transaction == 4:
                workload.update(ITEMS, 101, "changed")
            workload.commit()
        # Transactions that are one block, blocks with a rest, and lists.
        batches = list(workload.batches(5, records=sink.capabilities.records))
        forms = [inserts_as_columns(batch) for batch in batches]
        assert deliver(sink, forms) == batches[-1].position
        assert_complete(rig, sink.capabilities, workload)

    def test_transactions_may_come_as_columns(self, rig: SinkRig, tmp_path: Path) -> None:
        """The parts of a batch may be a `TransactionRun`."""
        pytest.importorskip("pyarrow")
        sink, workload = rig.build(tmp_path), ScriptedWorkload()
        for number in range(1, 25):
            workload.insert(NOTES if number == 13 else ITEMS, number, "new")
            if number == 7:
                workload.update(ITEMS, 3, "changed")
            workload.commit()
        batches = list(workload.batches(4, records=sink.capabilities.records))
        forms = [transactions_as_columns(batch) for batch in batches]
        assert len({type(form.parts) for form in forms}) == 2
        assert deliver(sink, forms) == batches[-1].position
        assert_complete(rig, sink.capabilities, workload)

    @pytest.mark.parametrize("delivered", [1, 3, 4, 6])
    @pytest.mark.parametrize("each", [True, False], ids=["flushed", "not flushed"])
    @pytest.mark.parametrize("reopened", [True, False], ids=["opened again", "still open"])
    def test_a_snapshot_that_broke_off_is_replaced_by_the_next(
        self, rig: SinkRig, tmp_path: Path, delivered: int, *, each: bool, reopened: bool
    ) -> None:
        sink, tables = rig.build(tmp_path), [ITEMS, NOTES, KINDS]
        records = sink.capabilities.records
        first, workload = filled(5, 0, 4), filled(5, 0, 4)
        sink.open()
        for batch in first.snapshot(tables, 2, records=records)[:delivered]:
            sink.write(batch)
            if each:
                sink.flush()
        if reopened:
            sink.close()
            sink = rig.build(tmp_path, has_offset=True)
            assert sink.open() is None, "a snapshot that did not end is no position to resume from"
            sink.flush()
            # The engine would store it, and miss it in the next run.
            assert not Positions.of(stored_position_of(sink)), "`open` would not return it"
        for table in (ITEMS, KINDS):
            # Nothing else distinguishes the two snapshots than these missing rows.
            del workload.rows[table.name][2]
        again = workload.snapshot(tables, 2, records=records)
        workload.insert(NOTES, 101, "streamed")
        workload.commit()
        written(sink, [*again, *workload.batches(10, records=records)], each=True)
        sink.close()
        capable = sink.capabilities
        hides = capable.restarts_tables or not capable.resumes_snapshots
        nothing = capable.exactly_once and (not each or (delivered == 1 and hides))
        broken_off = () if nothing else first.events
        assert_complete(rig, sink.capabilities, workload, broken_off=broken_off)

    @pytest.mark.parametrize("name", list(TEXTS))
    def test_text_survives(self, rig: SinkRig, tmp_path: Path, name: str) -> None:
        workload, sink = ScriptedWorkload(), rig.build(tmp_path)
        workload.insert(ITEMS, 1, TEXTS[name])
        workload.commit()
        deliver(sink, workload.batches(1_000, records=sink.capabilities.records))
        (found,) = rig.read_back()
        assert values_of(found)["name"] == TEXTS[name]

    def test_values_keep_their_types(self, rig: SinkRig, tmp_path: Path) -> None:
        """Columns come back with their types, and NULL as NULL."""
        sink = rig.build(tmp_path)
        if sink.capabilities.records:
            pytest.skip("takes rendered records: their types are the format's")
        workload = ScriptedWorkload()
        workload.insert(KINDS, 1, *KINDS_ROW, None)
        workload.commit()
        deliver(sink, workload.batches(1_000, records=sink.capabilities.records))
        (found,) = rig.read_back()
        assert isinstance(found, DeliveredChange)
        values = {name: found.values.get(name) for name in KINDS_VALUES}
        assert values == {**KINDS_VALUES, **rig.kinds}

    def test_records_without_key_and_with_headers_survive(
        self, rig: SinkRig, tmp_path: Path
    ) -> None:
        """Keys, headers and tombstones survive; a missing one is not empty."""
        sink = rig.build(tmp_path)
        if not (sink.capabilities.records and rig.stores_history):
            pytest.skip("takes changes, not records, or keeps rows only")
        headers = (("__debezium.newkey", b'{"id":2}'), ("trace", b'"a"'))
        given = [
            Record("server.public.items", None, b'{"op":"c","id":"1","serial":"1"}'),
            Record("server.public.items", b'{"id":"1"}', b'{"op":"d"}', headers),
            Record("server.public.items", b'{"id":"1"}', None, headers[:1]),
            Record("server.public.items", b'{"id":"2"}', b"{}"),
        ]
        deliver(sink, [Batch(parts=[], position=Position(0x100), events=3, records=given)])
        found = [record for record in rig.read_back() if isinstance(record, Record)]
        assert [parsed(record) for record in found] == [parsed(record) for record in given]

    def test_bytes_survive_unless_json_is_asked_for(self, rig: SinkRig, tmp_path: Path) -> None:
        """Without `json_only` keys and values may be any bytes."""
        sink = rig.build(tmp_path)
        if not (sink.capabilities.records and rig.stores_history) or sink.capabilities.json_only:
            pytest.skip("takes changes or JSON, or keeps rows only")
        given = Record("server.public.items", b"\x00\x01\xff\n", b"\x00\xfe\r\n\x00")
        deliver(sink, [Batch(parts=[], position=Position(0x100), events=1, records=[given])])
        (found,) = rig.read_back()
        assert isinstance(found, Record)
        assert (found.key, found.value) == (given.key, given.value)

    def test_a_schema_change_is_taken_in_mid_stream(self, rig: SinkRig, tmp_path: Path) -> None:
        """A table gains a column between two changes of one transaction."""
        sink = rig.build(tmp_path)
        workload = ScriptedWorkload()
        workload.insert(ITEMS, 1, "old")
        workload.insert(WIDER, 2, "new", "green")
        workload.commit()
        workload.insert(WIDER, 3, "newer", None)
        workload.update(WIDER, 1, "old", "red")
        workload.commit()
        deliver(sink, workload.batches(1_000, records=sink.capabilities.records))
        assert_complete(rig, sink.capabilities, workload)
        colours = {
            int(str(values["id"])): values.get("colour")
            for values in map(values_of, rig.read_back())
        }
        assert colours == {1: "red", 2: "green", 3: None}

    # --- opening again ---

    def test_a_sink_opened_again_continues(self, rig: SinkRig, tmp_path: Path) -> None:
        """The next run adds to the destination after a clean end."""
        workload = mixed(truncate=False)
        sink = rig.build(tmp_path)
        batches = list(workload.batches(4, records=sink.capabilities.records))
        promised = deliver(sink, batches[: len(batches) // 2], each=True)
        assert promised is not None
        again = rig.build(tmp_path, has_offset=True)
        stored_position = sole(again.open())
        if again.capabilities.exactly_once:
            assert stored_position == promised, "it must know the position of its data"
        else:
            assert stored_position is None or stored_position == promised
        written(again, workload.batches(4, promised, records=again.capabilities.records))
        again.close()
        assert_complete(rig, sink.capabilities, workload)

    def test_a_sink_opened_again_has_what_it_reported(self, rig: SinkRig, tmp_path: Path) -> None:
        """A reopened sink has the position that `stored_position` returned."""
        sink = rig.build(tmp_path)
        once = sink.capabilities.exactly_once
        sink.open()
        written(
            sink, mixed(truncate=False).batches(4, records=sink.capabilities.records), each=True
        )
        stored_position = Positions.of(stored_position_of(sink))
        assert bool(stored_position) == once, (
            "a stored position belongs to data stored exactly once"
        )
        sink.close()
        again = rig.build(tmp_path, has_offset=True)
        # The engine compares them to notice a destination that was restored or emptied.
        assert Positions.of(again.open()) == stored_position
        assert Positions.of(stored_position_of(again)) == stored_position
        again.close()

    def test_a_position_is_of_one_pipeline(self, rig: SinkRig, tmp_path: Path) -> None:
        if not rig.build(tmp_path).capabilities.exactly_once:
            pytest.skip("declares at least once")
        sink = rig.build(tmp_path)
        deliver(sink, mixed(truncate=False).batches(1_000, records=sink.capabilities.records))
        folder = tmp_path / "another pipeline"
        folder.mkdir()
        with contextlib.suppress(WaltapError):
            sink = rig.with_context(pipeline="another").build(folder, has_offset=True)
            try:
                stored_position = sink.open()
            finally:
                sink.close()
            # With that position the pipeline would skip changes that it never delivered.
            assert sole(stored_position) is None, (
                f"{stored_position} is the position of another pipeline"
            )

    def test_close_makes_nothing_durable_that_was_not_flushed(
        self, rig: SinkRig, tmp_path: Path
    ) -> None:
        """A batch that was written but not flushed is written again."""
        workload = mixed(truncate=False)
        sink = rig.opened(tmp_path)
        for batch in workload.batches(4, records=sink.capabilities.records):
            sink.write(batch)
        sink.close()
        once = sink.capabilities.exactly_once
        resume(rig, tmp_path, workload, START)
        assert_complete(rig, sink.capabilities, workload, doubled=None if once else START)

    def test_delivery_resumes_where_the_sink_ends(self, rig: SinkRig, tmp_path: Path) -> None:
        """An exactly-once sink returns its position, whatever offset is stored."""
        sink = rig.build(tmp_path)
        if not sink.capabilities.exactly_once:
            pytest.skip("declares at least once")
        workload = mixed(truncate=False)
        deliver(sink, workload.batches(4, records=sink.capabilities.records))
        resume(rig, tmp_path, workload, START)
        assert_complete(rig, sink.capabilities, workload)

    # --- crashes ---

    def test_a_kill_at_any_step_loses_nothing(
        self,
        new_rig: Callable[[Path], SinkRig],
        tmp_path: Path,
        record_property: Callable[[str, object], None],
    ) -> None:
        """A kill at any step loses nothing; only unpromised events may double."""
        kills = doubles = 0
        name, declared = "", False
        for crash in crashes(new_rig, tmp_path):
            kills += 1
            name, declared = crash.rig.spec.name, crash.capabilities.exactly_once
            doubles += crash.restart(lose_last_offset=False)
        says = "exactly once" if declared else "at least once"
        seen = f"{doubles} doubled" if doubles else "none doubled"
        if not (declared or doubles):
            seen += (
                " here, which promises nothing: exactly once is where `open` returns the position"
            )
        record_property("waltap", f"sink {name}: declares {says}; {kills} kills: none lost, {seen}")

    def test_a_kill_while_it_opens_loses_nothing(
        self, new_rig: Callable[[Path], SinkRig], tmp_path: Path
    ) -> None:
        """`open` finishes the work of a crash, and may be killed itself."""
        for crash in crashes_of_open(new_rig, tmp_path):
            crash.restart(lose_last_offset=False)

    def test_a_kill_before_the_offset_is_stored_doubles_nothing(
        self, new_rig: Callable[[Path], SinkRig], tmp_path: Path
    ) -> None:
        """An exactly-once sink corrects an offset that is one flush behind."""
        if not new_rig(tmp_path / "asked").build(tmp_path / "asked").capabilities.exactly_once:
            pytest.skip("declares at least once")
        for crash in crashes(new_rig, tmp_path):
            crash.restart(lose_last_offset=True)

    def test_a_kill_inside_a_write_loses_nothing(
        self, new_rig: Callable[[Path], SinkRig], tmp_path: Path
    ) -> None:
        """A file that the kernel tears at some byte loses nothing."""
        for size in TORN_AT:
            crash = SinkCrash(new_rig, tmp_path / f"torn-{size}", KillPoint(at_bytes=size))
            crash.restart(lose_last_offset=False)

    def test_a_destination_that_refuses_loses_nothing(self, rig: SinkRig, tmp_path: Path) -> None:
        """A full disk or an outage is a SinkError without promise."""
        workload = mixed(truncate=False)

        def act(child: CrashChild) -> None:
            sink, batches = _begun(rig, tmp_path, workload, child)
            with rig.outage() if rig.outage is not None else full_disk():
                verdict = write_and_report(sink, batches[1], child)
            # The engine retries on the same sink only with this verdict.
            if verdict is RetryVerdict.SAME_BATCH:
                for batch in batches[1:3]:
                    write_and_report(sink, batch, child)

        outcome = run(rig, act, KillPoint())
        assert outcome.error is None, f"only a SinkError may come out:\n{outcome.error}"
        _assert_resumes(rig, tmp_path, workload, outcome)

    def test_a_process_that_may_write_no_more_shows_nothing(
        self, rig: SinkRig, tmp_path: Path
    ) -> None:
        """A process without its lease writes nothing (`SinkContext.may_write`)."""
        gone = threading.Event()

        def may_write() -> None:
            if gone.is_set():
                raise LeaseGone

        sink = rig.with_context(may_write=may_write).build(tmp_path)
        workload = mixed(truncate=False)
        if not rig.asks:
            pytest.skip("declares that it leaves asking to the engine")
        sink.open()
        first, second, *_ = workload.batches(4, records=sink.capabilities.records)
        sink.write(first)
        sink.flush()
        before = list(rig.read_back())
        # From here another process may run the pipeline.
        gone.set()
        with pytest.raises(LeaseGone):  # noqa: PT012 - either may be what shows something
            sink.write(second)
            sink.flush()
        with contextlib.suppress(LeaseGone, SinkError):
            sink.close()
        assert list(rig.read_back()) == before

    def test_after_a_failed_flush_nothing_is_promised(
        self,
        new_rig: Callable[[Path], SinkRig],
        tmp_path: Path,
        record_property: Callable[[str, object], None],
    ) -> None:
        workload, write_failed = mixed(truncate=False), False
        # Where the outage makes the write fail, it begins after the write in a second course.
        for late in (False, True):
            folder = tmp_path / ("late" if late else "early")
            folder.mkdir()
            rig = new_rig(folder)
            act = partial(_flush_in_outage, rig, folder, workload, late)
            outcome = run(rig, act, KillPoint())
            assert outcome.error is None, f"after a failed flush only a SinkError:\n{outcome.error}"
            _assert_resumes(rig, folder, workload, outcome)
            # A sink that delivers in its writes alone has no flush that can fail.
            if "the flush failed" in outcome.steps or write_failed:
                return
            write_failed = "the write failed" in outcome.steps
        record_property(
            "waltap",
            f"sink {rig.spec.name}: NOT TESTED: what it does after a failed flush, since none of "
            "its flushes could be made to fail: give the rig an outage",
        )
        pytest.skip("no flush of it could be made to fail: give the rig an outage")


def _flush_in_outage(
    rig: SinkRig, folder: Path, workload: ScriptedWorkload, late: bool, child: CrashChild
) -> None:
    """Let a flush fail, if it can; expect that the sink promises nothing from there."""
    sink, batches = _begun(rig, folder, workload, child)
    if late:
        sink.write(batches[1])
    with rig.outage() if rig.outage is not None else failing_sync():
        try:
            if not late:
                sink.write(batches[1])
        except SinkError:
            child.mark("the write failed")
            return
        try:
            report_promise(sink.flush(), child)
        except SinkError:
            child.mark("the flush failed")
        else:
            return
    # The kernel reports a failed write-back once: a second flush would promise lost data.
    with pytest.raises(SinkError):
        sink.flush()
    with pytest.raises(SinkError):
        sink.write(batches[2])
    with pytest.raises(SinkError):
        sink.flush()
    sink.close()


def _begun(
    rig: SinkRig, folder: Path, workload: ScriptedWorkload, child: CrashChild
) -> tuple[Sink, list[Batch]]:
    """Return a sink that has the first of these batches."""
    sink = rig.opened(folder)
    batches = list(workload.batches(4, records=sink.capabilities.records))
    write_and_report(sink, batches[0], child)
    return sink, batches


def _assert_resumes(
    rig: SinkRig, folder: Path, workload: ScriptedWorkload, outcome: ChildOutcome
) -> None:
    """Check that a new sink completes the delivery of the child."""
    stored = Position(*outcome.reports[-1]) if outcome.reports else START
    capabilities = rig.build(folder).capabilities
    resume(rig, folder, workload, stored)
    doubled = None if capabilities.exactly_once else stored
    assert_complete(rig, capabilities, workload, doubled=doubled)
