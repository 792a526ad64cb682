"""Chunks of incremental snapshots: by watermarks, which the stream brings in the order of commits."""

from typing import Any

from waltap.decode.relation import Relation
from waltap.errors import SourceError
from waltap.signals.signal import SnapshotRequest
from waltap.snapshot.chunk_source import Chunk
from waltap_postgres.snapshot.chunk_query import PostgresChunks

__all__ = ["WatermarksNeeded", "YugabyteChunks"]


class WatermarksNeeded(SourceError):
    """A chunk can be put into the stream by watermarks alone, and none may be written."""

    code = "WT-2158"
    remedy = (
        "Name a table that the role may write (signal.data.collection), and leave read.only out."
    )


class YugabyteChunks(PostgresChunks):
    """Reads chunks between watermarks; a read sees exactly what had committed at its time."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._marks = arguments[3] is not None

    def maximum(self, request: SnapshotRequest, relation: Relation, key: tuple[int, ...]) -> Chunk:
        """Raises: WatermarksNeeded; as `PostgresChunks.maximum`."""
        if not self._marks:
            raise WatermarksNeeded("no watermark may be written, and no position says as of when")
        return super().maximum(request, relation, key)
