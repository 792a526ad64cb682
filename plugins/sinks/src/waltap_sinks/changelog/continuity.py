"""Stretches: runs of a table's entries between which no change of the table is missing.

Whoever applies the log may build on that: a row that is inserted then meets none of its key. A stretch
ends wherever a change may be missing: behind a position that was lost or passed over, where the
publication was changed, where the table, or the log, was left out for a while, or transforms took changes
away; and where a blocking snapshot reads a table, later than where its rows stand. What ends one need
not write to the log: a file beside the manifests says which go on (`FILE`).
"""

import uuid
from collections.abc import Callable
from typing import Final

import msgspec

from waltap.base.decode_errors import UNREADABLE
from waltap.base.files.store import FileStore
from waltap.ports.source.connector import PublicationCompleteness

__all__ = ["TableContinuity"]

FILE: Final = "stretches.json"


class _Continuity(msgspec.Struct, frozen=True, array_like=True):
    """``said`` is what `PublicationCompleteness.of` said of the table."""

    name: str
    said: str


class _StoredContinuities(msgspec.Struct, frozen=True):
    """``others`` is `PublicationCompleteness.others` of the last start."""

    others: str = ""
    tables: dict[str, _Continuity] = {}


class TableContinuity:
    """The stretches of one log's tables. Life cycle: open, (begins, of*, save)*."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._known: dict[str, _Continuity] = {}
        self._coverage = PublicationCompleteness()
        self._others = ""
        self._passed = self._as_before = self._unsaved = False
        self._reread = ""

    def open(self, *, goes_on: bool) -> None:
        """Find those that go on, where any may. Raises: FilesUnavailable."""
        self._known, self._coverage, self._others = {}, PublicationCompleteness(), ""
        self._passed = self._as_before = self._unsaved = False
        self._reread = ""
        if FILE not in self._store.names(""):
            return
        try:
            noted = msgspec.json.decode(self._store.read(FILE), type=_StoredContinuities)
            self._known, self._others = dict(noted.tables), noted.others
        except UNREADABLE:
            self._unsaved = True
        if not goes_on:
            self.end()

    def begins(
        self, coverage: PublicationCompleteness, captures: Callable[[str, str], bool] | None = None
    ) -> None:
        """Let those end that what comes now does not go on with; before anything is missing in the log, so
        that no later run goes on with them. Raises: FilesUnavailable."""
        self._coverage, self._passed, self._reread = coverage, False, ""
        self._as_before = coverage.goes_on and coverage.others == self._others
        if coverage.others != self._others:
            self._others, self._unsaved = coverage.others, True
        going_on = {
            name: stretch
            for name, stretch in self._known.items()
            if coverage.goes_on
            and (captures is None or captures(*_parts(name)))
            and coverage.of(*_parts(name)) == stretch.said
        }
        if len(going_on) < len(self._known):
            self._known, self._unsaved = going_on, True
        self.save()

    def end(self, table: str = "") -> None:
        """Let all of them end, or that of ``table`` (schema.table). Raises: FilesUnavailable."""
        left = {n: s for n, s in self._known.items() if table not in {"", ".".join(_parts(n))}}
        if len(left) < len(self._known):
            self._known, self._unsaved = left, True
        if not table and self._others:
            self._others, self._unsaved = "", True
        self._as_before = False
        self.save()

    def reads_again(self, schema: str, table: str) -> None:
        """Rows of a table come, up to the next transaction, that are of no stretch: they were read later
        than where they stand, so that what was inserted between comes once more behind them. Raises:
        FilesUnavailable."""
        self.end(f"{schema}.{table}")
        self._reread = _name(schema, table)

    def passes(self, commit_lsn: int) -> bool:
        """Tell whether stretches may begin with this transaction, and could not with what came before."""
        begins, self._reread = bool(self._reread), ""
        if self._passed or commit_lsn < self._coverage.since:
            return begins
        self._passed = True
        return True

    def of(self, schema: str, table: str, *, read: bool) -> str:
        """Return the stretch of what comes now of a table, "" where something may be missing. ``read``:
        rows that a snapshot reads now, which has seen everything up to now."""
        said, name = self._coverage.of(schema, table), _name(schema, table)
        if not said or name == self._reread:
            return ""
        if name not in self._known:
            as_before = self._as_before and said == self._coverage.others
            if not (read or self._passed or as_before):
                return ""
            self._known[name] = _Continuity(uuid.uuid4().hex[:12], said)
            self._unsaved = True
        return self._known[name].name

    def save(self) -> None:
        """Keep what goes on in a later run. Raises: FilesUnavailable."""
        if self._unsaved:
            noted = _StoredContinuities(others=self._others, tables=self._known)
            self._store.publish(FILE, msgspec.json.encode(noted) + b"\n")
            self._unsaved = False


def _name(schema: str, table: str) -> str:
    return msgspec.json.encode((schema, table)).decode()


def _parts(name: str) -> tuple[str, str]:
    return msgspec.json.decode(name, type=tuple[str, str])
