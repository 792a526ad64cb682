"""A part of an initial snapshot that any process can read."""

import abc
from collections.abc import Iterator

from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.transaction import SnapshotRows

__all__ = ["SnapshotChunk"]


class SnapshotChunk(abc.ABC):
    """Read some or all rows of a table in one snapshot of the source.

    `Connector.chunks` creates chunks. A chunk can be pickled, and another process can read it if it can
    reach the source. It is valid until the connector ends the snapshot or is closed. A chunk contains the
    password of the source: protect it as such.
    """

    # The table.
    relation: Relation
    # Index among the `count` chunks of the table.
    index: int
    count: int
    # Same as `SnapshotRows.visible` of its pieces.
    visible: str = ""

    @abc.abstractmethod
    def read(self) -> Iterator[SnapshotRows]:
        """Yield the rows, in pieces without markers.

        The last piece has ``ends_chunk``. Every call reads again. Raises: SnapshotError,
        ConnectionLost (also if the snapshot no longer exists), SourceError.
        """
