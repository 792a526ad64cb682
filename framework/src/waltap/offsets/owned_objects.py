"""What a pipeline has on servers: its slot and its publications, and which of them it made itself.

Kept beside the offset and longer than it: `waltap offsets clear` forgets a position, not a slot. An
entry is written *before* the thing is made, so that a start that is killed in between knows its own
slot again, and `waltap drop` finds everything.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from waltap.decode_errors import UNREADABLE
from waltap.errors import ConnectionLost, OffsetError
from waltap.offsets.durable_file import replace_durably

__all__ = ["BelongingsUnreadable", "BelongingsUnwritable", "OwnedObject", "OwnedObjects"]


class BelongingsUnreadable(OffsetError):
    """The list of what a pipeline has on the server is damaged."""

    code = "WT-6006"
    remedy = (
        "Restore {path} from a backup, or remove it; when slot and publication are this pipeline's "
        "and no offset is stored, slot.adopt=true lets it take its slot again."
    )


class BelongingsUnwritable(OffsetError):
    """The list of what a pipeline has on the server cannot be written."""

    code = "WT-6007"
    remedy = "Make {path} writable (space, permissions); waltap.state.dir chooses the folder."


class OwnedObject(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One thing on a server. ``kind``: "slot" or "publication". ``made``: by this pipeline; False for
    one that was there and is used by consent, which `waltap drop` leaves alone.

    Of a slot that follows its publication late only: ``made_at``, when it was made, in µs since 1970 by
    the server's clock, 0 where that is not known; ``newest``, the greatest OID of a table there was then;
    and ``streams``, what it streams, and from when on the publication has that (0: from the start)."""

    kind: str
    name: str
    system_id: str
    database: str
    made: bool = True
    made_at: int = 0
    newest: int = 0
    streams: tuple[tuple[str, int], ...] = ()

    @property
    def place(self) -> tuple[str, str, str, str]:
        """Return what no two entries share."""
        return self.kind, self.name, self.system_id, self.database


class OwnedObjects:
    """The entries of one pipeline, in a JSON file; in memory only without ``path``.

    Raises, from every method: BelongingsUnreadable, BelongingsUnwritable.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._entries: dict[tuple[str, str, str, str], OwnedObject] | None = None

    def all(self) -> list[OwnedObject]:
        """Return every entry, sorted."""
        return sorted(self._loaded().values())

    def find(self, kind: str, name: str, system_id: str, database: str) -> OwnedObject | None:
        """Return the entry of one thing, None when the pipeline does not have it."""
        return self._loaded().get((kind, name, system_id, database))

    def keep(self, *entries: OwnedObject) -> None:
        """Add or replace entries, durably; writes nothing when nothing changes."""
        known = self._loaded()
        new = {entry.place: entry for entry in entries}
        if any(known.get(place) != entry for place, entry in new.items()):
            self._replace({**known, **new})

    @contextmanager
    def making(self, *entries: OwnedObject) -> Iterator[None]:
        """Keep ``entries`` while the ``with`` block makes them; of what could not be made nothing stays.

        After a connection that broke the server may have made it all the same: the entry stays.
        """
        self.keep(*entries)
        try:
            yield
        except ConnectionLost:
            raise
        except Exception:
            self.forget(entries)
            raise

    def forget(self, entries: Iterable[OwnedObject]) -> None:
        """Take out what is no more."""
        known, gone = self._loaded(), {entry.place for entry in entries}
        if gone & known.keys():
            self._replace({place: entry for place, entry in known.items() if place not in gone})

    def _loaded(self) -> dict[tuple[str, str, str, str], OwnedObject]:
        if self._entries is None:
            self._entries = {entry.place: entry for entry in self._read()}
        return self._entries

    def _read(self) -> list[OwnedObject]:
        if self.path is None:
            return []
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=list[OwnedObject])
        except (
            FileNotFoundError,
            NotADirectoryError,
        ):  # the folder is somebody else's to complain of
            return []
        except (OSError, *UNREADABLE) as error:
            problem = f"what the pipeline has on the server cannot be read: {error}"
            raise BelongingsUnreadable(problem, path=self.path) from error

    def _replace(self, entries: dict[tuple[str, str, str, str], OwnedObject]) -> None:
        if self.path is not None:
            data = msgspec.json.format(msgspec.json.encode(sorted(entries.values())), indent=1)
            try:
                replace_durably(self.path, data + b"\n")
            except OSError as error:
                problem = f"what the pipeline has on the server cannot be stored: {error.strerror}"
                raise BelongingsUnwritable(problem, path=self.path) from error
        self._entries = entries
