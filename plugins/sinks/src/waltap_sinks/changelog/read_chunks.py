"""What the log has of a snapshot that has not ended."""

from collections.abc import Iterable

from waltap.changes.transactions.snapshot_progress import SnapshotProgress
from waltap_sinks.changelog.manifest import Manifest, SnapshotPart

__all__ = ["ReadChunks"]

_FIRST = frozenset((0,))
"""The chunks of most tables."""


class ReadChunks:
    """Tables and chunks of one generation, by the table's OID, all of whose rows were taken. ``part`` is
    what manifests say of the snapshot, None where none has been published."""

    def __init__(
        self, part: SnapshotPart | None = None, manifests: Iterable[Manifest] = ()
    ) -> None:
        manifests = list(manifests)
        if any(manifest.elsewhere for manifest in manifests):
            part, manifests = None, []  # nobody has those rows any more
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
        """Tell whether all rows of a chunk are there."""
        return chunk in self._chunks.get(oid, ())

    def has_all(self, oid: int) -> bool:
        """Tell whether all rows of a table are there."""
        return oid in self._complete

    def ended(self, oid: int, chunk: int) -> None:
        """Take note of a chunk."""
        known = self._chunks.get(oid)
        self._chunks[oid] = (
            _FIRST if known is None and not chunk else (known or frozenset()) | {chunk}
        )

    def completed(self, oid: int) -> None:
        """Take note of the last chunk of a table."""
        self._complete.add(oid)

    def forget(self, oid: int) -> None:
        """What there is of a table counts for nothing."""
        self._chunks.pop(oid, None)
        self._complete.discard(oid)

    def lacks(self, progress: SnapshotProgress) -> bool:
        """Tell whether something is missing that the offset takes for durable."""
        return any(
            (table.complete and int(oid) not in self._complete)
            or not self._chunks.get(int(oid), frozenset()).issuperset(table.done)
            for oid, table in progress.tables.items()
        )
