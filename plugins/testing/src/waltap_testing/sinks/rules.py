"""Sink tests: interrupted snapshots, refused records and redelivered dead letters."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from waltap.changes.capture.capture import CaptureRules
from waltap.changes.capture.properties import CaptureProperties
from waltap.changes.decode.message import Insert, LogicalMessage
from waltap.changes.events.event import Record
from waltap.changes.transactions.position import Position, Positions, SnapshotProgress, TableChunks
from waltap.changes.transactions.transaction import (
    Batch,
    Heartbeat,
    SnapshotRows,
)
from waltap.ports.sink.refusal import RecordsRefused, leave_out
from waltap.ports.sink.roles import RedeliveryAwareSink, stored_position_of
from waltap.ports.sink.sink import Sink
from waltap_testing.sinks.crash import bare, deliver, written
from waltap_testing.sinks.rig import DeliveredChange, SinkRig, assert_complete, sole, values_of
from waltap_testing.workload import (
    HIDDEN,
    ITEMS,
    NOTES,
    ScriptedWorkload,
    lone_part,
    mixed,
    relation,
)

KINDS = relation(
    "kinds",
    [
        ("id", "int4"),
        ("serial", "int8"),
        ("flag", "bool"),
        ("small", "int2"),
        ("ratio", "float8"),
        ("price", "numeric"),
        ("name", "text"),
        ("data", "bytea"),
        ("day", "date"),
        ("at", "timestamptz"),
        ("note", "text"),
    ],
    oid=16403,
    # PostgreSQL's typmod of numeric(12, 2).
    typmods={"price": ((12 << 16) | 2) + 4},
)
KINDS_ROW = ("t", "-7", "0.1", "12345.60", "x", r"\x00ff", "2024-02-29", "2024-02-29 12:30:00+00")
# The chunks of a table in the recorded progress: more than any table of the suite has.
MOST_CHUNKS = 100


def filled(items: int, notes: int, kinds: int) -> ScriptedWorkload:
    """Return a workload whose tables hold rows before it begins."""
    workload = ScriptedWorkload()
    for table, count, row in (
        (ITEMS, items, ("read",)), (NOTES, notes, ("read",)), (KINDS, kinds, (*KINDS_ROW, None)),
    ):  # fmt: skip
        for number in range(1, count + 1):
            workload.insert(table, number, *row)
    workload.commit()
    workload.begin_again()
    return workload


def _progress(batches: Iterable[Batch]) -> SnapshotProgress:
    """Return the offset's progress after ``batches`` became durable."""
    tables: dict[str, TableChunks] = {}
    for piece in _pieces(batches):
        known = tables.get(str(piece.relation.oid), TableChunks(count=MOST_CHUNKS))
        if piece.ends_chunk:
            known = known.ended(piece.chunk, complete=piece.complete)
        tables[str(piece.relation.oid)] = known
    return SnapshotProgress(kind="initial", lsn=0, tables=tables)


def _pieces(batches: Iterable[Batch]) -> list[SnapshotRows]:
    return [part for batch in batches for part in batch.parts if isinstance(part, SnapshotRows)]


def _going_on(batches: Sequence[Batch]) -> Sequence[Batch]:
    """Mark the first piece as the resumption of the snapshot."""
    for number, piece in enumerate(_pieces(batches)):
        piece.opens, piece.resumed = False, not number
    return batches


class SnapshotsGoOn:
    """Rules for sinks that accept a resumed snapshot.

    They declare `SinkCapabilities.resumes_snapshots`.
    """

    @pytest.mark.parametrize("delivered", [1, 3, 4, 6])
    def test_a_snapshot_that_broke_off_continues(
        self, rig: SinkRig, tmp_path: Path, delivered: int
    ) -> None:
        """Flushed pieces count, and the rest follows without an opening."""
        sink, tables = rig.build(tmp_path), [ITEMS, NOTES, KINDS]
        records = sink.capabilities.records
        if not sink.capabilities.resumes_snapshots:
            pytest.skip("declares that a snapshot is taken again")
        workload = filled(5, 0, 4)
        batches = workload.snapshot(tables, 2, records=records)
        deliver(sink, batches[:delivered])
        sink = rig.opened(tmp_path, has_offset=True, snapshot=_progress(batches[:delivered]))
        written(sink, _going_on(batches[delivered:]), each=True)
        stored = Positions.of(stored_position_of(sink))
        sink.close()
        sink = rig.build(tmp_path, has_offset=True)
        opened = Positions.of(sink.open())
        assert not stored or opened == stored, "the snapshot has ended: `open` returns its position"
        workload.insert(NOTES, 101, "streamed")
        workload.commit()
        written(sink, workload.batches(10, records=records), each=True)
        sink.close()
        assert_complete(rig, sink.capabilities, workload)

    @pytest.mark.parametrize("opened_again", [True, False])
    @pytest.mark.parametrize("ended", [True, False])
    def test_a_chunk_that_comes_again_counts_once(
        self, rig: SinkRig, tmp_path: Path, *, ended: bool, opened_again: bool
    ) -> None:
        """A chunk that is delivered again leaves no double.

        The sink has the chunk, whole or in part, and the offset does not know it. This applies to
        sinks that keep position and data together and accept a resumed snapshot.
        """
        sink, tables = rig.build(tmp_path), [ITEMS, NOTES, KINDS]
        capable = sink.capabilities
        if not (capable.restarts_tables and capable.exactly_once):
            pytest.skip("takes rows of a snapshot as they come")
        workload = filled(6, 0, 4)
        batches = workload.snapshot(tables, 2, records=capable.records)
        if not ended:  # one chunk of three pieces
            for number, piece in enumerate(_pieces(batches)[:3]):
                piece.chunk, piece.ends_chunk = 0, number == 2
        sink.open()
        written(sink, batches[:2])
        if opened_again:
            sink.close()
            sink = rig.opened(tmp_path, has_offset=True, snapshot=_progress([]))
        written(sink, _going_on(batches), each=True)
        sink.close()
        assert_complete(rig, capable, workload)

    @pytest.mark.parametrize("flushed", [True, False])
    @pytest.mark.parametrize("opened_again", [True, False])
    def test_what_came_of_a_table_that_restarts_counts_for_nothing(
        self, rig: SinkRig, tmp_path: Path, *, flushed: bool, opened_again: bool
    ) -> None:
        """A restarted table replaces its earlier rows.

        Its rows come again from the first, some no longer exist, and its chunks differ.
        """
        sink, tables = rig.build(tmp_path), [ITEMS, NOTES, KINDS]
        capable = sink.capabilities
        if not capable.restarts_tables:
            pytest.skip("takes rows of a snapshot as they come")
        first, workload = filled(6, 0, 4), filled(6, 0, 4)
        # A row that the restarted table lacks: the sink must remove it without a delete.
        del workload.rows[ITEMS.name][2]
        begun = first.snapshot(tables, 2, records=capable.records)[:2]
        again = workload.snapshot(tables, 3, records=capable.records)
        sink.open()
        for batch in begun:
            sink.write(batch)
        if flushed or opened_again:
            sink.flush()
        if opened_again:
            sink.close()
            sink = rig.opened(tmp_path, has_offset=True, snapshot=_progress(begun))
        _pieces(again)[0].restarts = True
        written(sink, _going_on(again), each=True)
        sink.close()
        # A history without a position of its own cannot remove the first attempt's rows.
        broken_off = first.events if rig.stores_history and not capable.exactly_once else ()
        assert_complete(rig, capable, workload, broken_off=broken_off)


class AppliesChanges:
    """Rules for rare changes and parts; a base of the suite."""

    def test_batches_that_come_in_stay_as_they_are(self, rig: SinkRig, tmp_path: Path) -> None:
        """The engine counts written batches, and other sinks get their parts."""
        sink = rig.opened(tmp_path)
        for batch in mixed(truncate=False).batches(4, records=sink.capabilities.records):
            before = _content(batch)
            sink.write(batch)
            sink.flush()
            assert _content(batch) == before, "it changed its batch"
        sink.close()

    def test_parts_without_rows_move_the_position(self, rig: SinkRig, tmp_path: Path) -> None:
        """Heartbeats and logical messages are parts of batches, too."""
        sink, workload = rig.build(tmp_path), ScriptedWorkload()
        workload.insert(ITEMS, 1, "before")
        workload.commit()
        batches = list(workload.batches(10, records=sink.capabilities.records))
        end = workload.parts[-1].end_lsn + 8
        message = LogicalMessage(end, transactional=False, prefix="app", content=b"\x00\xff")
        batches.append(bare(sink, Position(end), Heartbeat(ts=1)))
        batches.append(bare(sink, Position(end), lone_part(message), Heartbeat(ts=2)))
        assert deliver(sink, batches) == Position(end)
        assert _ids(rig)[:1] == [1]

    def test_rows_follow_what_comes_seldom(self, rig: SinkRig, tmp_path: Path) -> None:
        """A row moves with its key, and keeps unsent values."""
        sink, workload = rig.build(tmp_path), ScriptedWorkload()
        if sink.capabilities.records or rig.stores_history:
            pytest.skip("takes rendered records, or keeps a history")
        for number in range(1, 6):
            workload.insert(ITEMS, number, f"item {number}")
            workload.insert(NOTES, number, f"note {number}")
        workload.insert(KINDS, 1, *KINDS_ROW, None)
        workload.commit()
        workload.update_unsent(ITEMS, 1)
        workload.update_unsent(ITEMS, 2, moved_to=20)
        workload.update_unsent(ITEMS, 3, moved_to=30)
        workload.update_unsent(ITEMS, 30)
        workload.commit()
        sink.open()
        promised = written(sink, workload.batches(4, records=False), each=True)
        assert promised is not None
        # Beside the stream: the other rows of the table stay.
        pieces = [workload.read_again(ITEMS, 4, "again"), workload.read_again(ITEMS, 9, "new")]
        for piece in pieces:
            sink.write(Batch(parts=[piece], position=promised, events=1))
        sink.flush()
        if sink.capabilities.truncate:
            workload.truncate_all(KINDS, NOTES)
        workload.insert(NOTES, 40, "after")
        workload.commit()
        written(sink, workload.batches(4, promised, records=False))
        sink.close()
        for table, name in ((ITEMS, "name"), (NOTES, "body")):
            found = {
                int(str(values["id"])): (int(str(values["serial"])), values[name])
                for item in rig.read_back()
                if isinstance(item, DeliveredChange) and item.table == table.name
                for values in (item.values,)
            }
            rows = workload.rows[table.name].items()
            assert found == {key: (int(row[1] or 0), row[2]) for key, row in rows}

    @pytest.mark.parametrize("name", list(HIDDEN))
    def test_a_hidden_value_is_not_delivered(self, rig: SinkRig, tmp_path: Path, name: str) -> None:
        """A sink of changes hides the values that the profile hides.

        The columns and their masks are in plans of `SinkContext.events`.
        """
        given = {"topic.prefix": "server", **HIDDEN[name]}
        rig = rig.with_context(capture=CaptureRules(CaptureProperties.model_validate(given)))
        sink, workload = rig.build(tmp_path), ScriptedWorkload()
        if sink.capabilities.records:
            pytest.skip("takes rendered records")
        for number in range(1, 4):
            workload.insert(ITEMS, number, "secret one")
        workload.commit()
        workload.begin_again()
        sink.open()
        written(sink, workload.snapshot([ITEMS], records=False))
        workload.insert(ITEMS, 4, "secret two")
        workload.update(ITEMS, 1, "secret three")
        workload.delete(ITEMS, 2)
        workload.commit()
        written(sink, workload.batches(10, records=False))
        sink.close()
        found = [item for item in rig.read_back() if isinstance(item, DeliveredChange)]
        assert len(found) >= 3
        assert not [item for item in found if "secret" in str(item.values.get("name"))]

    def test_a_column_that_is_left_out_moves_no_other(self, rig: SinkRig, tmp_path: Path) -> None:
        """The column behind it has its own value."""
        given = {"topic.prefix": "server", "column.exclude.list": r"public\.items\.serial"}
        rig = rig.with_context(capture=CaptureRules(CaptureProperties.model_validate(given)))
        sink, workload = rig.build(tmp_path), ScriptedWorkload()
        if sink.capabilities.records:
            pytest.skip("takes rendered records")
        workload.insert(ITEMS, 1, "a name")
        workload.commit()
        workload.begin_again()
        sink.open()
        written(sink, workload.snapshot([ITEMS], records=False))
        workload.insert(ITEMS, 2, "a name")
        workload.commit()
        written(sink, workload.batches(10, records=False))
        sink.close()
        assert [values_of(item).get("name") for item in rig.read_back()] == ["a name"] * 2


def _content(batch: Batch) -> object:
    """Return a batch's fields, parts and lists."""
    parts = [
        (part, list(getattr(part, "changes", ())), list(getattr(part, "rows", ())))
        for part in batch.parts
    ]
    records = None if batch.records is None else list(batch.records)
    return batch.position, batch.partition, batch.events, batch.number, parts, records


# In the middle of a transaction, with rows before and after it.
UNFIT_ID = 4
# Changes in a batch: all, or so few that a transaction is in several batches.
ALL_CHANGES, CUT = 100, 2


class RefusesSingleRecords:
    """Rules for sinks whose rig has ``unfit``; the contract: `RecordsRefused`."""

    @pytest.fixture
    def tolerant(
        self, new_rig: Callable[[Path], SinkRig], tmp_path: Path
    ) -> tuple[SinkRig, ScriptedWorkload]:
        """Return a rig that tolerates refusals, and one unfit row."""
        rig = new_rig(tmp_path)
        if rig.unfit is None:
            pytest.skip("declares no value that its destination refuses")
        unfit, workload = rig.unfit(), ScriptedWorkload()
        workload.insert(ITEMS, 1, "first")
        workload.commit()
        for number in range(2, 8):
            workload.insert(ITEMS, number, unfit if number == UNFIT_ID else "fits")
        workload.commit()
        workload.insert(ITEMS, 8, "last")
        workload.commit()
        return rig.with_context(tolerant=True), workload

    @pytest.mark.parametrize("most", [ALL_CHANGES, CUT], ids=["one batch", "a cut transaction"])
    def test_a_record_that_is_refused_costs_no_other(
        self, tolerant: tuple[SinkRig, ScriptedWorkload], tmp_path: Path, most: int
    ) -> None:
        rig, workload = tolerant
        sink = rig.opened(tmp_path)
        refused: list[int] = []
        for batch in workload.batches(most, records=sink.capabilities.records):
            refused += _written(sink, batch)
        assert refused == [UNFIT_ID]
        assert sole(sink.flush()) == Position(workload.parts[-1].end_lsn)
        sink.close()
        assert _ids(rig) == [1, 2, 3, 5, 6, 7, 8]

    def test_a_kill_between_a_refusal_and_the_rest_loses_nothing(
        self, tolerant: tuple[SinkRig, ScriptedWorkload], tmp_path: Path
    ) -> None:
        """A crash after a refusal loses nothing: the batch is repeated."""
        rig, workload = tolerant
        sink = rig.opened(tmp_path)
        once = sink.capabilities.exactly_once
        (batch,) = workload.batches(ALL_CHANGES, records=sink.capabilities.records)
        with pytest.raises(RecordsRefused):
            sink.write(batch)
        # The refused record is kept elsewhere by then; no other record of the batch may count.
        if not once:
            assert sole(sink.flush()) is None, "neither the batch nor its position was accepted"
        sink.close()
        sink = rig.build(tmp_path, has_offset=True)
        after = sole(sink.open()) or Position(0)
        for batch in workload.batches(ALL_CHANGES, after, records=sink.capabilities.records):
            _written(sink, batch)
        assert sole(sink.flush()) == Position(workload.parts[-1].end_lsn)
        sink.close()
        found = _ids(rig)
        assert list(dict.fromkeys(found)) == [1, 2, 3, 5, 6, 7, 8]
        if once:
            assert len(found) == len(set(found)), "doubled"


def _written(sink: Sink, batch: Batch) -> list[int]:
    """Write as the engine does; return the ids of refused rows."""
    # The engine keeps the refused records, removes them, and writes the same batch object again.
    refused: list[int] = []
    for _ in range(100):
        try:
            sink.write(batch)
        except RecordsRefused as error:
            for each in error.refused:
                if batch.records is not None:
                    refused.append(int(str(values_of(batch.records[each.index])["id"])))
                else:
                    refused.append(int(str(each.change.new[0])))  # type: ignore[union-attr] # inserts
            leave_out(batch, error.refused)
        else:
            return refused
    pytest.fail("it names records that the batch no longer has")


def _ids(rig: SinkRig) -> list[int]:
    found = [item for item in rig.read_back() if not isinstance(item, Record) or item.value]
    return [int(str(values_of(item)["id"])) for item in found]


# The identifier of a dead letter.
LETTER = "16B3-1#1"
ROW = ("900001", "900001", "a letter")


class TakesRedeliveries:
    """Rules for `Batch.redelivers`; a base class of the suite."""

    def test_a_redelivered_letter_is_new_and_known_again(
        self, rig: SinkRig, tmp_path: Path
    ) -> None:
        """A redelivered dead letter arrives, although its position was passed."""
        sink = rig.build(tmp_path)
        batches = mixed(truncate=False).batches(4, records=sink.capabilities.records)
        promised = deliver(sink, batches, each=True)
        assert promised is not None
        before = len(rig.read_back())
        again = rig.build(tmp_path, has_offset=True)
        held = sole(again.open()) or promised
        if isinstance(again, RedeliveryAwareSink):
            assert LETTER not in again.redelivered()
        again.write(_dead_letter(again, held))
        again.flush()
        again.close()
        last = rig.opened(tmp_path, has_offset=True)
        # A sink that keeps the identifiers of dead letters names it when it opens again.
        if isinstance(last, RedeliveryAwareSink):
            assert set(last.redelivered()) <= {LETTER}
        last.close()
        assert len(rig.read_back()) == before + 1, "it is there, once"


def _dead_letter(sink: Sink, position: Position) -> Batch:
    # The position stays: a redelivery does not move the stream.
    batch = Batch(parts=[], position=position, events=1, redelivers=(LETTER,))
    if sink.capabilities.records:
        batch.records = [
            Record("server.public.items", b'{"id":"900001"}', b'{"op":"c","serial":"900001"}')
        ]
        return batch
    batch.parts = [lone_part(Insert(ITEMS, position.end_lsn, ROW), xid=0)]
    return batch
