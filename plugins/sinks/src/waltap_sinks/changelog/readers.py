"""Readers that a change log waits for: each has a small file in the log itself, and retention stops at it.

Whoever follows a log by another program, on another machine, registers under a name and says from
time to time how far it is. What it has not read stays, but not for ever: one that has said nothing for
its ``hold_s`` is passed over, so that a reader nobody thinks of any more does not fill the disk.

::

    readers/NAME.json
"""

import logging
import time
from typing import Final

import msgspec

from waltap.decode_errors import UNREADABLE
from waltap.files.store import FileStore, safe_name
from waltap_sinks.changelog.errors import ChangeLogDamaged, ReaderUnknown
from waltap_sinks.changelog.manifest import NOTHING, LogPosition

__all__ = ["HOLD_S", "LogReader", "LogReaders"]

log = logging.getLogger(__name__)

FOLDER: Final = "readers"
SUFFIX: Final = ".json"
HOLD_S: Final = 72 * 3600.0


class LogReader(msgspec.Struct, frozen=True, kw_only=True):
    """A reader: everything up to ``mark`` is read; ``seen`` is when it said so (s since 1970).

    ``hold_s``: how long the log waits for its next word. ``by``: who it is, for people.
    """

    name: str
    mark: LogPosition
    seen: float
    hold_s: float = HOLD_S
    by: str = ""

    def holds(self, now: float) -> bool:
        """Tell whether the log still waits for it."""
        return now - self.seen <= self.hold_s


class LogReaders:
    """The readers of the log in ``store``. Every method asks the files; a reader writes its own alone."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._passed: set[str] = set()

    def register(
        self, name: str, mark: LogPosition = NOTHING, *, hold_s: float = HOLD_S, by: str = ""
    ) -> LogReader:
        """Have the log keep what comes after ``mark``; one of that name that is there is where it was.

        Returns it as it stands now.
        """
        found = self.get(name)
        if found is not None:
            mark = found.mark
        return self._write(LogReader(name=name, mark=mark, seen=time.time(), hold_s=hold_s, by=by))

    def advance(self, name: str, mark: LogPosition) -> LogReader:
        """Let go of what lies up to ``mark``; this is a sign of life, too. It never goes back.

        Raises: ReaderUnknown.
        """
        found = self.get(name)
        if found is None:
            raise self._unknown(name)
        mark = max(mark, found.mark)
        return self._write(msgspec.structs.replace(found, mark=mark, seen=time.time()))

    def forget(self, name: str) -> None:
        """Wait for this one no more. Raises: ReaderUnknown."""
        if self.get(name) is None:
            raise self._unknown(name)
        self._store.delete(_path(name))

    def get(self, name: str) -> LogReader | None:
        """Return the reader called ``name``, None when there is none. Raises: ChangeLogDamaged."""
        file = _path(name).rpartition("/")[2]
        return self._load(file) if file in self._store.names(FOLDER) else None

    def all(self) -> list[LogReader]:
        """Return every reader, by name. Raises: ChangeLogDamaged."""
        names = [name for name in self._store.names(FOLDER) if name.endswith(SUFFIX)]
        return [self._load(name) for name in names]

    def held(self, applied: LogPosition) -> LogPosition:
        """Return the mark up to which ``applied`` and every reader that the log waits for are."""
        now = time.time()
        for reader in self.all():
            if reader.holds(now):
                self._passed.discard(reader.name)
                applied = min(applied, reader.mark)
            elif reader.name not in self._passed:
                self._passed.add(reader.name)
                log.warning(
                    "the change log waits no more for its reader %s, which has said nothing for %.1f h",
                    reader.name,
                    (now - reader.seen) / 3600,
                )
        return applied

    def _load(self, file: str) -> LogReader:
        path = f"{FOLDER}/{file}"
        try:
            return msgspec.json.decode(self._store.read(path), type=LogReader)
        except UNREADABLE as cause:
            raise ChangeLogDamaged(f"{path} is no reader: {cause}", path=path) from cause

    def _write(self, reader: LogReader) -> LogReader:
        self._store.publish(_path(reader.name), msgspec.json.encode(reader) + b"\n")
        return reader

    def _unknown(self, name: str) -> ReaderUnknown:
        known = ", ".join(each.name for each in self.all()) or "none"
        return ReaderUnknown(
            f"{self._store.location} has no reader {name!r}", known=known, path=self._store.location
        )


def _path(name: str) -> str:
    return f"{FOLDER}/{safe_name(name)}{SUFFIX}"
