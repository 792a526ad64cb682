"""Identify a change log and its entries without gaps.

Entries of a table that follow each other without a gap have the same continuity id (a stretch). A
reader of the log may rely on it: an inserted row then replaces none. A new id begins wherever a
change may be missing: behind a lost or skipped position, after a change of the publication, after a
run without the table or the log, and where transforms remove changes. A blocking snapshot needs
one, too, since it reads a table later than the position of its rows. The log has nothing to write
in these cases, so a file beside the manifests has the ids that continue.
"""

import uuid
from collections.abc import Callable
from typing import Final

import msgspec

from waltap.base.files.durable_file import UNREADABLE
from waltap.base.files.store import FileStore
from waltap.ports.source.connector import PublicationCompleteness
from waltap_sinks.changelog.errors import ChangeLogDamaged

FILE: Final = "stretches.json"
IDENTITY_FILE: Final = "log.json"


class _LogIdentity(msgspec.Struct, frozen=True):
    id: str


def log_identity(store: FileStore) -> str:
    """Return the id of the log in ``store``.

    Logs of earlier releases have none; the result is then empty. Raises: ChangeLogDamaged,
    FilesUnavailable.
    """
    if IDENTITY_FILE not in store.names(""):
        return ""
    try:
        return msgspec.json.decode(store.read(IDENTITY_FILE), type=_LogIdentity).id
    except UNREADABLE as cause:
        raise ChangeLogDamaged(
            f"{IDENTITY_FILE} has no id: {cause}", path=store.uri(IDENTITY_FILE)
        ) from cause


def make_log_identity(store: FileStore) -> str:
    """Return the log's id; create a missing one."""
    found = log_identity(store)
    if not found:
        store.publish(IDENTITY_FILE, msgspec.json.encode(_LogIdentity(uuid.uuid4().hex)) + b"\n")
        found = log_identity(store)  # of two concurrent writers the last one decides
    return found


class _Continuity(msgspec.Struct, frozen=True, array_like=True):
    """Hold the id of a table and its completeness."""

    name: str
    # The result of `PublicationCompleteness.of`.
    completeness: str


class _StoredContinuities(msgspec.Struct, frozen=True):
    """Define the content of the file."""

    # `PublicationCompleteness.others` of the last start.
    others: str = ""
    # By schema and table as JSON.
    tables: dict[str, _Continuity] = {}


class TableContinuity:
    """Manage the continuity ids of one log. Life cycle: open, (begins, of*, save)*."""

    def __init__(self, store: FileStore) -> None:
        self._store = store
        self._reset()

    def _reset(self) -> None:
        # By schema and table.
        self._known: dict[tuple[str, str], _Continuity] = {}
        self._completeness = PublicationCompleteness()
        self._others = ""
        self._passed = self._as_before = self._unsaved = False
        self._reread: tuple[str, str] | None = None

    def open(self, *, continues: bool) -> None:
        """Read the stored ids; with ``continues`` they continue. Raises: FilesUnavailable."""
        self._reset()
        if FILE not in self._store.names(""):
            return
        try:
            noted = msgspec.json.decode(self._store.read(FILE), type=_StoredContinuities)
            names = msgspec.json.Decoder(tuple[str, str])
            self._known = {names.decode(name): known for name, known in noted.tables.items()}
            self._others = noted.others
        except UNREADABLE:
            # The ids are an optimisation: without them Spark merges by key, and new ones begin.
            self._unsaved = True
        if not continues:
            self.end()

    def begins(
        self,
        completeness: PublicationCompleteness,
        captures: Callable[[str, str], bool] | None = None,
    ) -> None:
        """End the ids that the coming changes do not continue.

        The file is written before any change may be missing, so no later run continues them. Raises:
        FilesUnavailable.
        """
        self._completeness, self._passed, self._reread = completeness, False, None
        self._as_before = completeness.continuous and completeness.others == self._others
        if completeness.others != self._others:
            self._others, self._unsaved = completeness.others, True
        going_on = {
            table_id: known
            for table_id, known in self._known.items()
            if completeness.continuous
            and (captures is None or captures(*table_id))
            and completeness.of(*table_id) == known.completeness
        }
        if len(going_on) < len(self._known):
            self._known, self._unsaved = going_on, True
        self.save()

    def end(self, table: str = "") -> None:
        """End the id of ``table`` (schema.table), or all. Raises: FilesUnavailable."""
        remaining = {n: s for n, s in self._known.items() if table not in {"", ".".join(n)}}
        if len(remaining) < len(self._known):
            self._known, self._unsaved = remaining, True
        if not table and self._others:
            self._others, self._unsaved = "", True
        self._as_before = False
        self.save()

    def reads_again(self, schema: str, table: str) -> None:
        """End the id of a table that a blocking snapshot reads.

        The rows come up to the next transaction and have no id. They were read later than their
        position, so rows that were inserted in between come again behind them. Raises:
        FilesUnavailable.
        """
        self.end(f"{schema}.{table}")
        self._reread = schema, table

    def passes_until(self, commit_lsn: int) -> bool:
        """Return whether a transaction up to ``commit_lsn`` `passes`."""
        return bool(self._reread) or not (self._passed or commit_lsn < self._completeness.since)

    def passes(self, commit_lsn: int) -> bool:
        """Return whether the first ids may begin with this transaction."""
        begins, self._reread = bool(self._reread), None
        if self._passed or commit_lsn < self._completeness.since:
            return begins
        self._passed = True
        return True

    def of(self, schema: str, table: str, *, read: bool) -> str:
        """Return the id of a table's next entry.

        It is empty if a change may be missing. With ``read`` a snapshot reads the rows now, so none
        is missing.
        """
        completeness, table_id = self._completeness.of(schema, table), (schema, table)
        if not completeness or table_id == self._reread:
            return ""
        if table_id not in self._known:
            as_before = self._as_before and completeness == self._completeness.others
            if not (read or self._passed or as_before):
                return ""
            self._known[table_id] = _Continuity(uuid.uuid4().hex[:12], completeness)
            self._unsaved = True
        return self._known[table_id].name

    def save(self) -> None:
        """Store the ids for later runs. Raises: FilesUnavailable."""
        if self._unsaved:
            tables = {msgspec.json.encode(n).decode(): s for n, s in self._known.items()}
            noted = _StoredContinuities(others=self._others, tables=tables)
            self._store.publish(FILE, msgspec.json.encode(noted) + b"\n")
            self._unsaved = False
