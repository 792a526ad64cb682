"""A part of an initial snapshot that any process can read."""

import abc
from collections.abc import Iterator

from waltap.decode.relation import Relation
from waltap.transactions.transaction import SnapshotRows

__all__ = ["SnapshotChunk"]


class SnapshotChunk(abc.ABC):
    """Some rows of one table, or all, as one snapshot of the source has them (`Connector.chunks`).

    It can be pickled, and read by another process that reaches the source, until the connector that gave
    it is told that the snapshot is over, or closed. It holds what connects, the password included: keep it
    as one keeps that. ``relation`` is the table, ``index`` the chunk's place among the ``count`` chunks of
    the table. ``visible`` is what its pieces have (`SnapshotRows.visible`).
    """

    relation: Relation
    index: int
    count: int
    visible: str = ""

    @abc.abstractmethod
    def read(self) -> Iterator[SnapshotRows]:
        """Yield the rows, in pieces without markers; the last one ``ends_chunk``. Every call reads again.

        Raises: SnapshotError, ConnectionLost (also when the snapshot is gone), SourceError.
        """
