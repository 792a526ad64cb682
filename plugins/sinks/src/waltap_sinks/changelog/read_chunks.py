"""Track the chunks of an unfinished snapshot in the log."""

from collections.abc import Iterable

from waltap.changes.transactions.snapshot_progress import SnapshotProgress
from waltap_sinks.changelog.manifest import Manifest, SnapshotPart

__all__ = ["ReadChunks"]

# The chunks of most tables.
_FIRST = frozenset((0,))


class ReadChunks:
    """Track the complete chunks and tables of one generation by OID."""

    def __init__(
        self, part: SnapshotPart | None = None, manifests: Iterable[Manifest] = ()
    ) -> None:
        manifests = list(manifests)
        if any(manifest.elsewhere for manifest in manifests):
            part, manifests = None, []  # the rows of an aborted snapshot elsewhere are lost
        # The snapshot in the manifests; None if none is published.
        self.part = part
        self._chunks: dict[int, frozenset[int]] = {}
        self._complete: set[int] = set()
        for manifest in manifests:
            for entry in manifest.tables:
                if entry.restarts:
                    self.forget(entry.oid)
                for chunk in entry.chunks:
                    self.ended(entry.oid, chunk)
                if entry.complete:
                    self.completed(entry.oid)

    def has(self, oid: int, chunk: int) -> bool:
        """Return whether all rows of a chunk are in the log."""
        return chunk in self._chunks.get(oid, ())

    def has_all(self, oid: int) -> bool:
        """Return whether all rows of a table are in the log."""
        return oid in self._complete

    def ended(self, oid: int, chunk: int) -> None:
        """Record a complete chunk."""
        known = self._chunks.get(oid)
        self._chunks[oid] = (
            _FIRST if known is None and not chunk else (known or frozenset()) | {chunk}
        )

    def completed(self, oid: int) -> None:
        """Record the last chunk of a table."""
        self._complete.add(oid)

    def forget(self, oid: int) -> None:
        """Discard the chunks of a table."""
        self._chunks.pop(oid, None)
        self._complete.discard(oid)

    def lacks(self, progress: SnapshotProgress) -> bool:
        """Return whether the log lacks rows that the offset calls durable."""
        return any(
            (table.complete and int(oid) not in self._complete)
            or not self._chunks.get(int(oid), frozenset()).issuperset(table.done)
            for oid, table in progress.tables.items()
        )
