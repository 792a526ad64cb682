"""Record which slot and publications a pipeline owns on servers.

The record outlives the offset: `waltap offsets clear` deletes a position, not a slot. An entry is written
*before* its object is created. So a start that was killed in between recognizes its own slot, and
`waltap drop` finds every object.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from waltap.base.files.durable_file import StateDocument
from waltap.errors import ConnectionLost, OffsetError

OwnedObjectsUnreadable = OffsetError.define("OwnedObjectsUnreadable", "WT-6006")
OwnedObjectsUnwritable = OffsetError.define("OwnedObjectsUnwritable", "WT-6007")


class OwnedObject(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One object on a server that belongs to a pipeline."""

    # "slot" or "publication".
    kind: str
    name: str
    system_id: str
    database: str
    # Whether this pipeline created it. `waltap drop` keeps an object that existed before.
    made: bool = True
    # The next fields are for a slot whose publication is completed later. This one is the
    # server's time of creation, in µs since 1970; 0 if unknown.
    made_at: int = 0
    # Greatest OID of a table at that time.
    newest: int = 0
    # Each streamed table, and the LSN from which the publication has it (0: the start).
    streams: tuple[tuple[str, int], ...] = ()

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.kind, self.name, self.system_id, self.database


class OwnedObjects:
    """The entries of one pipeline, in a JSON file.

    Without ``path`` they are in memory only. Raises, from every method: OwnedObjectsUnreadable,
    OwnedObjectsUnwritable.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._document = path and StateDocument(
            path,
            list[OwnedObject],
            OwnedObjectsUnreadable,
            unwritable=OwnedObjectsUnwritable,
            what="what the pipeline has on the server",
            indented=True,
        )
        self._entries: dict[tuple[str, str, str, str], OwnedObject] | None = None

    def all(self) -> list[OwnedObject]:
        """Return every entry, sorted."""
        return sorted(self._loaded().values())

    def find(self, kind: str, name: str, system_id: str, database: str) -> OwnedObject | None:
        return self._loaded().get((kind, name, system_id, database))

    def keep(self, *entries: OwnedObject) -> None:
        """Add or replace entries durably; skip a write without changes."""
        known = self._loaded()
        new = {entry.key: entry for entry in entries}
        if any(known.get(key) != entry for key, entry in new.items()):
            self._replace({**known, **new})

    @contextmanager
    def making(self, *entries: OwnedObject) -> Iterator[None]:
        """Record ``entries`` while the ``with`` block creates the objects.

        If the block fails, the entries are removed.
        """
        self.keep(*entries)
        try:
            yield
        # The server may have created the object before the connection broke: keep the entry.
        except ConnectionLost:
            raise
        except Exception:
            self.forget(entries)
            raise

    def forget(self, entries: Iterable[OwnedObject]) -> None:
        known, gone = self._loaded(), {entry.key for entry in entries}
        if gone & known.keys():
            self._replace({key: entry for key, entry in known.items() if key not in gone})

    def _loaded(self) -> dict[tuple[str, str, str, str], OwnedObject]:
        if self._entries is None:
            found = self._document.load() if self._document else None
            self._entries = {entry.key: entry for entry in found or ()}
        return self._entries

    def _replace(self, entries: dict[tuple[str, str, str, str], OwnedObject]) -> None:
        if self._document:
            self._document.save(sorted(entries.values()))
        self._entries = entries
