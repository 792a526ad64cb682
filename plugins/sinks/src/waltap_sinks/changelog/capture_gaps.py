"""Tables that were not captured for a while, until the change log itself says so."""

import contextlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from waltap.decode_errors import UNREADABLE
from waltap.offsets.durable_file import replace_durably
from waltap_sinks.changelog.manifest import TableEntry

__all__ = ["MissedNote"]


class MissedNote:
    """The file ``path`` in the pipeline's own state, with the names of tables whose next entry is to be
    `TableEntry.missed`. What cannot be noted is said in this run alone."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tables: set[str] = set()

    def read(self) -> None:
        """Take what was noted, and not said yet."""
        with contextlib.suppress(OSError, *UNREADABLE):
            self._tables |= msgspec.json.decode(self._path.read_bytes(), type=set[str])

    def add(self, table: str) -> None:
        """Note ``table``, beside what was noted before."""
        self.read()
        self._tables.add(table)
        self._write()

    def marked(self, entries: Iterable[TableEntry]) -> tuple[TableEntry, ...]:
        """Return ``entries`` with what they are to say; a whole snapshot lacks nothing."""
        return tuple(
            msgspec.structs.replace(each, missed=True)
            if each.name in self._tables and each.generation is None
            else each
            for each in entries
        )

    def published(self, entries: Iterable[TableEntry]) -> None:
        """Forget the tables of which ``entries`` say it, or which they replace."""
        said = {each.name for each in entries if each.missed or each.complete}
        if not self._tables.isdisjoint(said):
            self._tables -= said
            self._write()

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            if self._tables:
                replace_durably(self._path, msgspec.json.encode(sorted(self._tables)))
            else:
                self._path.unlink(missing_ok=True)
