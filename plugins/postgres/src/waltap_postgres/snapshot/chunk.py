"""Chunks of an initial snapshot that other processes read.

They read in the snapshot that the engine exported for them.
"""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

from waltap.decode.relation import Relation
from waltap.snapshot.chunk import SnapshotChunk
from waltap.transactions.transaction import SnapshotRows
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.connection import connect, watch
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.snapshot.errors import SnapshotNotShared, TableOvertaken
from waltap_postgres.snapshot.plan import ReadTask, TableSplit
from waltap_postgres.snapshot.reader import SnapshotPoint, TablesReader
from waltap_postgres.snapshot.transaction import (
    ONE_SNAPSHOT,
    CatalogShape,
    ReadingTransaction,
    SnapshotTable,
)

__all__ = ["PostgresChunk"]


@dataclass(frozen=True, kw_only=True)
class PostgresChunk(SnapshotChunk):
    """Describe one chunk; the engine that exported the snapshot locks its table."""

    properties: PostgresProperties
    catalogue: type[PostgresCatalogue]
    reading: type[ReadingTransaction]
    # Name of the exported snapshot.
    given: str
    # Transactions that the exported snapshot sees.
    seen: str
    point: SnapshotPoint
    target: SnapshotTable
    shape: CatalogShape
    part: TableSplit | None
    visible: str
    # Number of the table's chunks.
    count: int
    # SELECT that returns the rows instead of the table.
    statement: str | None = None

    @property
    def relation(self) -> Relation:  # type: ignore[override]
        return self.target.table.relation

    @property
    def index(self) -> int:  # type: ignore[override]
        return 0 if self.part is None else self.part.index

    def read(self) -> Iterator[SnapshotRows]:
        watching = watch(self.properties)
        with closing(connect(self.properties, role="catalogue", watch=watching)) as connection:
            now = self.catalogue(connection, self.properties)
            with closing(self.reading(self.properties, now, watching)) as transaction:
                transaction.begin(self.given, ONE_SNAPSHOT)
                # A pooler or a load balancer may have given another server's connection.
                if (mine := transaction.catalogue.snapshot()) != self.seen:
                    raise SnapshotNotShared(f"a reader of snapshot {self.seen} sees {mine}")
                transaction.then[self.target.oid] = self.shape

                def later() -> ReadingTransaction:
                    name = self.relation.name
                    raise TableOvertaken(
                        f"{name} was changed while its chunks were read", table=name
                    )

                chosen = {} if self.statement is None else {self.relation.name: self.statement}
                reader = TablesReader(
                    transaction, self.point, self.properties, later, statements=chosen
                )
                parts = () if self.part is None else (self.part,)
                for piece in reader.read(ReadTask([self.target], parts, visible=self.visible)):
                    piece.complete = piece.complete and self.count == 1
                    yield piece
