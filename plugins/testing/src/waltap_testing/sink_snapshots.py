"""Sink tests: snapshots that are interrupted and resumed."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from waltap.changes.transactions.snapshot_progress import SnapshotProgress, TableChunks
from waltap.changes.transactions.transaction import Batch, SnapshotRows
from waltap_testing.sink_crash import deliver, written
from waltap_testing.sink_findings import assert_complete
from waltap_testing.sink_rig import SinkRig
from waltap_testing.workload import ITEMS, NOTES, ScriptedWorkload, relation

__all__ = ["KINDS", "KINDS_ROW", "SnapshotsGoOn", "filled"]

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
    for number in range(1, items + 1):
        workload.insert(ITEMS, number, "read")
    for number in range(1, notes + 1):
        workload.insert(NOTES, number, "read")
    for number in range(1, kinds + 1):
        workload.insert(KINDS, number, *KINDS_ROW, None)
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
        piece.opens, piece.goes_on = False, not number
    return batches


class SnapshotsGoOn:
    """Rules for sinks that accept a resumed snapshot.

    They declare `SinkCapabilities.resumes_snapshots`.
    """

    @pytest.mark.parametrize("delivered", [1, 3, 4, 6])
    def test_a_snapshot_that_broke_off_goes_on(
        self, rig: SinkRig, tmp_path: Path, delivered: int
    ) -> None:
        """Flushed pieces count, and the rest follows without an opening."""
        sink, tables = rig.build(tmp_path), [ITEMS, NOTES, KINDS]
        records = sink.capabilities.records
        if not sink.capabilities.resumes_snapshots:
            pytest.skip("declares that a snapshot is taken anew")
        workload = filled(5, 0, 4)
        batches = workload.snapshot(tables, 2, records=records)
        deliver(sink, batches[:delivered])
        sink = rig.build(tmp_path, resumes=True, snapshot=_progress(batches[:delivered]))
        sink.open()
        workload.insert(NOTES, 101, "streamed")
        workload.commit()
        rest = [*_going_on(batches[delivered:]), *workload.batches(10, records=records)]
        written(sink, rest, each=True)
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
            sink = rig.build(tmp_path, resumes=True, snapshot=_progress([]))
            sink.open()
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
            sink = rig.build(tmp_path, resumes=True, snapshot=_progress(begun))
            sink.open()
        _pieces(again)[0].restarts = True
        written(sink, _going_on(again), each=True)
        sink.close()
        # A history without a position of its own cannot remove the first attempt's rows.
        broken_off = first.events if rig.keeps_history and not capable.exactly_once else ()
        assert_complete(rig, capable, workload, broken_off=broken_off)
