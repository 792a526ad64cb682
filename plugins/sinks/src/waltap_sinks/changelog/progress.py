"""Track the published position, missed tables, and chunks of a snapshot."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from waltap.base.files.durable_file import StateDocument, private, private_folder
from waltap.changes.transactions.position import SnapshotProgress
from waltap_sinks.changelog.manifest import LogPosition, Manifest, SnapshotPart, TableEntry


class ReadChunks:
    """Track the complete chunks and tables of one snapshot by OID."""

    def __init__(
        self, part: SnapshotPart | None = None, manifests: Iterable[Manifest] = ()
    ) -> None:
        manifests = list(manifests)
        if any(manifest.external_snapshots for manifest in manifests):
            part, manifests = None, []  # the rows of an aborted snapshot elsewhere are lost
        # The snapshot in the manifests; None if none is published.
        self.part = part
        self._chunks: dict[int, set[int]] = {}
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
        return chunk in self._chunks.get(oid, ())

    def has_all(self, oid: int) -> bool:
        return oid in self._complete

    def ended(self, oid: int, chunk: int) -> None:
        self._chunks.setdefault(oid, set()).add(chunk)

    def completed(self, oid: int) -> None:
        self._complete.add(oid)

    def forget(self, oid: int) -> None:
        self._chunks.pop(oid, None)
        self._complete.discard(oid)

    def lacks(self, progress: SnapshotProgress) -> bool:
        """Return whether the log lacks rows that the offset calls durable."""
        return any(
            (table.complete and int(oid) not in self._complete)
            or not self._chunks.get(int(oid), set()).issuperset(table.done)
            for oid, table in progress.tables.items()
        )


class CaptureGapFile:
    """Store the tables whose next entry is `TableEntry.missed`.

    The file is in the pipeline's state folder. If it cannot be written, only this run knows them.
    """

    def __init__(self, path: Path) -> None:
        # Optional: a document that cannot be written is known to this run alone.
        self._document = StateDocument(path, list[str])
        self._tables: set[str] = set()

    def read(self) -> None:
        self._tables.update(self._document.load() or ())

    def add(self, table: str) -> None:
        self.read()
        self._tables.add(table)
        self._write()

    def marked(self, entries: Iterable[TableEntry]) -> tuple[TableEntry, ...]:
        """Mark ``entries`` of these tables as missed."""
        return tuple(
            msgspec.structs.replace(each, missed=True)
            if each.name in self._tables and each.snapshot_id is None
            else each
            for each in entries
        )

    def published(self, entries: Iterable[TableEntry]) -> None:
        """Forget the tables whose entries are marked or complete."""
        reported = {each.name for each in entries if each.missed or each.complete}
        if not self._tables.isdisjoint(reported):
            self._tables -= reported
            self._write()

    def _write(self) -> None:
        if self._tables:
            self._document.save(sorted(self._tables))
        else:
            self._document.clear()


def write_note(path: Path, text: str) -> None:
    """Store a text for a check; ignore errors."""
    # A rename, so that a kill leaves the old text or the new one, never half of it.
    draft = path.with_suffix(".tmp")
    with contextlib.suppress(OSError):
        private_folder(path.parent)
        with open(draft, "w", opener=private) as file:
            file.write(text)
        draft.replace(path)


class PublishedNote:
    """Store the last published position of the log at ``log``.

    The file is in the pipeline's state folder. With it the sink detects an empty or older log.
    """

    def __init__(self, path: Path, log: str) -> None:
        self._path, self._log = path, log
        # The id of the log, which it also has elsewhere.
        self.identity = ""

    def write(self, log_position: LogPosition) -> None:
        write_note(self._path, f"{self._log}\n{self.identity}\n{log_position}")

    def read(self) -> LogPosition | None:
        """Return the position, None if nothing was written or it is unknown."""
        try:
            about, _, text = self._path.read_text().rpartition("\n")
            log_position = LogPosition.parse(text)
        except (OSError, ValueError):
            return None
        log, _, identity = about.rpartition("\n")
        # Release 0.1 stored no identity.
        own = self._log in {log, about} or (identity and identity == self.identity)
        return log_position if own else None

    def forget(self) -> None:
        self._path.unlink(missing_ok=True)
