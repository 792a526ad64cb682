"""Snapshots that go beside the change log: chunks without a server, and what the log says of them."""

from collections.abc import Iterator, Sequence

from tests.harness.changelog import relation

from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import Batch, SnapshotRows
from waltap.ports.snapshot.chunk_source import SnapshotChunk

ITEMS = relation("public.items", [("id", "int4"), ("v", "text")])


class Chunk(SnapshotChunk):
    """One of rows that are given."""

    def __init__(
        self, relation: Relation, index: int, count: int, rows: Sequence[tuple[str, ...]] = ()
    ) -> None:
        self.relation, self.index, self.count = relation, index, count
        self.rows = list(rows)

    def read(self) -> Iterator[SnapshotRows]:
        if self.rows:
            yield SnapshotRows(relation=self.relation, rows=self.rows, ts=1, lsn=7, xid=None)


def rows(name: str, rows: Sequence[tuple[str, ...]] = (), table: Relation = ITEMS) -> Batch:
    """Return a whole snapshot of ``table``, whose rows are handed over under ``name``, "" where not."""
    piece = SnapshotRows(
        relation=table,
        rows=[*rows],
        ts=1,
        lsn=7,
        xid=None,
        opens=True,
        complete=True,
        ends_chunk=True,
        external_snapshot=name,
    )
    return Batch(parts=[piece], position=Position(7), events=0, snapshot=True)
