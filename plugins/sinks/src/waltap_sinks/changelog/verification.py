"""Read a change log for a comparison."""

import datetime as dt
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import Any, Final

from waltap.base.files.properties import StorageProperties
from waltap.base.files.store import FileStore
from waltap.base.import_rules import pa
from waltap.ports.sink.verification import ComparedTable, TableReader, VerificationSource
from waltap_sinks.changelog.errors import ChangeLogMissing
from waltap_sinks.changelog.manifest import ColumnEntry, Manifest, TableEntry
from waltap_sinks.changelog.properties import ChangeLogProperties
from waltap_sinks.changelog.reader import (
    ChangeLog,
    LoggedEntry,
    as_read,
    complete_generations,
)
from waltap_sinks.comparison.common_text import ARRAYS, source_text
from waltap_sinks.comparison.table_readers import RowTableReader

# A transaction may put a row under a key before it deletes the existing one (rows that change
# places), or put a row under a key and move it. Of two rows under one key a delete removes the older
# one.

Key = tuple[Any, ...]

# The server's NaN equals itself.
NAN: Final = float("nan")

# Beginnings of Arrow types whose values are no text of the server.
NESTED: Final = ("list<", "struct<", "map<")

LIST: Final = "list<item: "

# Beginnings of Arrow types that have no alias, or no cast from text.
READ: Final[dict[str, Callable[[str], Any]]] = {
    "binary": bytes.fromhex,
    "decimal": Decimal,
    "time64": dt.time.fromisoformat,
    "timestamp[us, tz": lambda text: pa.array([text]).cast(pa.timestamp("us", "UTC"))[0].as_py(),
}


class CurrentRows:
    """Apply changes to the rows of one table, in order.

    Without a key the rows are a multiset.
    """

    def __init__(
        self, columns: Sequence[str], key: Sequence[str], present: int | None = None
    ) -> None:
        self._columns = tuple(columns)
        # The first so many columns exist; others are dropped ones, of earlier keys.
        self._present = present
        self._indexes = {name: n for n, name in enumerate(columns)}
        self._key = [self._indexes[name] for name in key]
        self._keyed: dict[Key, list[Any]] = {}
        self._bag: dict[str, tuple[list[Any], int]] = {}
        self._transaction: object = None
        # The rows that the transaction must still delete, as it has put others under their keys.
        self._older: dict[Key, list[list[Any]]] = {}
        self._moved: list[Any] | None = None

    def rows(self) -> Iterable[Sequence[Any]]:
        if self._key:
            yield from self._keyed.values()
        else:
            for row, count in self._bag.values():
                for _ in range(count):
                    yield row

    def identify(self, key: Sequence[str]) -> None:
        """Identify the rows by another key from now on."""
        indexes = [self._indexes[name] for name in key]
        if indexes == self._key:
            return
        rows, self._key = list(self.rows()), indexes
        self._keyed, self._bag, self._transaction = {}, {}, None
        for row in rows:
            self._put(list(row), (), new=False, second=False) if key else self._count(list(row), 1)

    def apply(
        self, operation: str, row: Mapping[str, Any], *, transaction: object, second: bool
    ) -> None:
        """Apply one change.

        ``row`` is a segment's row with the present column names. ``second`` marks the second row of
        a change.
        """
        if transaction != self._transaction:
            self._transaction, self._older = transaction, {}
        values = [row.get(name) for name in self._columns]
        if operation == "t":
            self._keyed.clear()
            self._bag.clear()
            self._older.clear()
        elif not self._key:
            self._count(values, -1 if operation == "d" else 1)
        elif operation == "d":
            self._delete(self._key_of(values))
        else:
            self._put(values, row.get("_unchanged") or (), new=operation == "c", second=second)

    def _key_of(self, values: Sequence[Any]) -> Key:
        return tuple([_hashable(values[n]) for n in self._key])

    def _count(self, row: list[Any], by: int) -> None:
        written = repr(row[: self._present])  # lists do not hash, and NaN equals nothing
        remaining = self._bag.get(written, (row, 0))[1] + by
        if remaining > 0:
            self._bag[written] = row, remaining
        else:
            self._bag.pop(written, None)

    def _delete(self, key: Key) -> None:
        older = self._older.get(key)
        self._moved = older.pop(0) if older else self._keyed.pop(key, None)

    def _put(self, values: list[Any], unsent: Sequence[str], *, new: bool, second: bool) -> None:
        key = self._key_of(values)
        before = self._moved if second else self._keyed.get(key)
        if unsent and before is not None:
            for name in unsent:
                if name in self._indexes:
                    values[self._indexes[name]] = before[self._indexes[name]]
        if new and key in self._keyed:
            self._older.setdefault(key, []).append(self._keyed[key])
        self._keyed[key] = values


def _hashable(value: Any) -> Any:
    """Return a value of a key as the server compares it."""
    if isinstance(value, list):
        return tuple([_hashable(each) for each in value])
    if isinstance(value, dict):
        return tuple([_hashable(each) for each in value.values()])
    return NAN if value != value else value  # noqa: PLR0124 - only NaN differs from itself


def named_store(location: str) -> FileStore:
    """Return the files of a change log by folder, URI or profile.

    A profile has the settings of an object store. Raises: ConfigurationError; ChangeLogMissing if
    the profile writes no change log; FilesUnavailable.
    """
    if "://" in location or not Path(location).is_file():
        return FileStore(location)
    return profile_store(location)


def profile_store(file: str) -> FileStore:
    """Return the files of the change log that a profile writes.

    It may lie beside tables. Raises: ConfigurationError; ChangeLogMissing; FilesUnavailable.
    """
    from waltap.cli.profile_source import read
    from waltap.config.resolve import resolve
    from waltap.plugins.host import Host

    for sink in resolve(read(file), Host()).sinks:
        properties = sink.properties
        # Every sink with a change log names its folder so.
        folder: str | None = getattr(properties, "changelog", None)
        if isinstance(properties, StorageProperties) and folder is not None:
            return FileStore(folder, properties)
    raise ChangeLogMissing(f"the profile {file} writes no change log", path=file)


def open_verification_source(properties: ChangeLogProperties, pipeline: str) -> VerificationSource:
    """Open the change log of a pipeline. Raises: ChangeLogMissing."""
    log = ChangeLog(FileStore(properties.path, properties))
    if not log.exists():
        raise ChangeLogMissing(f"there is no change log at {properties.path}", path=properties.path)
    return ComparableLog(log)


class LoggedTable:
    """Collect the entries of one table, also those before a rename."""

    def __init__(self) -> None:
        # "" once another table has its name and no entry brought its own.
        self.name = ""
        self.epoch = self.oid = 0
        # The newest entry with columns.
        self.newest: TableEntry | None = None
        self.entries: list[LoggedEntry] = []
        # Columns with the value of older rows, by number. The source forgets the value when it
        # writes the table again.
        self.missing: dict[int, ColumnEntry] = {}

    def add(self, epoch: int, entry: TableEntry) -> None:
        self.name, self.epoch, self.oid = entry.name, epoch, entry.oid
        self.entries.append((epoch, entry))
        if entry.columns:
            self.newest = entry
        for column in entry.columns:
            if column.number is not None and column.missing is not None:
                self.missing[column.number] = column


class LoggedTables:
    """Follow the tables of a change log.

    Within an epoch a table is its OID. The next epoch may be of another server: there it is its
    name, or its OID under a name that it had.
    """

    def __init__(self) -> None:
        self.all: list[LoggedTable] = []
        self._named: dict[str, LoggedTable] = {}
        # By epoch and OID, and by name and OID.
        self._numbered: dict[tuple[int | str, int], LoggedTable] = {}

    def add(self, epoch: int, entry: TableEntry) -> None:
        owner, oid = self._named.get(entry.name), entry.oid
        table = self._numbered.get((epoch, oid)) or self._numbered.get((entry.name, oid))
        if table is None and owner is not None:
            another = oid and owner.oid and owner.epoch == epoch
            table = None if another else owner
        if table is None:
            table = LoggedTable()
            self.all.append(table)
        if table is not owner:
            if owner is not None:
                owner.name = ""
            self._named.pop(table.name, None)
            self._named[entry.name] = table
        table.add(epoch, entry)
        if oid:
            self._numbered[epoch, oid] = self._numbered[entry.name, oid] = table


class ComparableLog:
    """Read the tables of a change log by their newest entries.

    A comparison reads all changes of one table into memory.
    """

    def __init__(self, log: ChangeLog) -> None:
        self._log = log
        # Returns the stored offset: the log has everything before it, also where nothing was written.
        self.stored_offset: Callable[[], int | None] = lambda: None
        self._manifests: list[Manifest] = []
        self._complete: set[tuple[str, int]] = set()
        self._tables = LoggedTables()
        self._listed: dict[tuple[str, int], LoggedTable] = {}

    def close(self) -> None:
        """Do nothing: no file is open."""

    def position(self) -> int | None:
        """Return the later of the newest manifest and the stored offset."""
        last = self._log.last()
        return None if last is None else max(last.log_position.end_lsn, self.stored_offset() or 0)

    def _follow(self) -> None:
        """Read the manifests that are new."""
        after = self._manifests[-1].log_position if self._manifests else None
        if new := list(self._log.manifests(after)):
            self._manifests += new
            self._complete = complete_generations(self._manifests)
        for manifest in new:
            for entry in manifest.tables:
                self._tables.add(manifest.log_position.epoch, entry)

    def tables(self) -> list[ComparedTable]:
        self._follow()
        found = []
        for logged in sorted(self._tables.all, key=lambda table: table.name):
            # An OID of an earlier epoch may be of another server.
            known = logged.epoch == self._manifests[-1].log_position.epoch
            oid = logged.oid if known else 0
            # Within an epoch another table may have the name, without a change of its own yet.
            name = "" if oid else logged.name
            if logged.newest is None or not (name or oid):
                continue
            self._listed[name, oid] = logged
            entry = logged.newest
            columns = {c.number: c.name for c in entry.columns if c.number is not None}
            found.append(ComparedTable(name=name, oid=oid, key=entry.key, columns=columns))
        return found

    def _entry(self, table: ComparedTable) -> TableEntry:
        entry = self._listed[table.name, table.oid].newest
        assert entry is not None
        return entry

    def common(self, table: ComparedTable, column: str, called: str, type_: str) -> str | None:
        """Return a column's text in the segments, or None."""
        entries = {entry.name: entry for entry in self._entry(table).columns}
        found = entries.get(called)
        if found is None or (found.arrow.startswith(NESTED) and type_ not in ARRAYS):
            return None
        return source_text(column, type_)

    def reader(
        self, table: ComparedTable, columns: Sequence[tuple[str, str]], key: Sequence[str]
    ) -> TableReader:
        logged, entry = self._listed[table.name, table.oid], self._entry(table)
        names = [called for called, _ in columns]

        def read() -> Iterable[Sequence[Any]]:
            self._follow()
            return self._live(logged, entry, names)

        return RowTableReader(read, columns, key)

    def _live(
        self, logged: LoggedTable, entry: TableEntry, names: Sequence[str]
    ) -> Iterable[Sequence[Any]]:
        """Return a table's present rows with the columns of ``entry``."""
        present = {c.number: c for c in entry.columns if c.number is not None}
        runs = [
            (epoch, run, _present_names(run.columns, present))
            for epoch, run in as_read(logged.entries, self._complete, skip_replaced=True)
        ]
        # The table's own keys, also where a comparison leaves out a column of them.
        keys = [tuple([called.get(name, name) for name in run.key]) for _, run, called in runs]
        there = {column.name for column in entry.columns}
        columns = sorted(dict.fromkeys((*names, *chain(*keys))), key=lambda name: name not in there)
        live = CurrentRows(columns, (), len(there.intersection(columns)))
        for (epoch, run, called), key in zip(runs, keys, strict=True):
            live.identify(key)
            missing = _missing(run.columns, entry.columns, logged.missing)
            for segment in run.segments:
                table = self._log.store.read_parquet(segment.path)
                for row in table.to_pylist():
                    values = {called.get(name, name): value for name, value in row.items()}
                    for name, value in missing.items():
                        values.setdefault(name, value)
                    if values.get("_unchanged"):
                        values["_unchanged"] = [called.get(n, n) for n in values["_unchanged"]]
                    live.apply(
                        row["_op"],
                        values,
                        transaction=(epoch, row["_commit_lsn"]),
                        second=row["_sub"] == 1,
                    )
        return (row[: len(names)] for row in live.rows())


def _present_names(
    columns: Sequence[ColumnEntry], present: Mapping[int, ColumnEntry]
) -> dict[str, str]:
    """Return renamed columns' new names, which dropped columns may have had."""
    return {
        column.name: present[column.number].name
        if column.number in present
        else f"{column.name}@{column.number}"
        for column in columns
        if column.number is not None
    }


def _missing(
    columns: Sequence[ColumnEntry], now: Sequence[ColumnEntry], values: Mapping[int, ColumnEntry]
) -> dict[str, Any]:
    """Return the values that older rows have in new columns."""
    had = {column.number for column in columns}
    names = {column.number: column.name for column in now if column.number not in had}
    return {
        names[number]: _value(column.missing, column.arrow)
        for number, column in values.items()
        if number in names
    }


def _value(text: str | None, arrow: str) -> Any:
    """Return a value of `ColumnEntry.missing` as a segment would have it."""
    if text is None:
        return None
    if arrow.startswith(LIST):
        return [_value(each, arrow[len(LIST) : -1]) for each in json.loads(text)]
    for kind, read in READ.items():
        if arrow.startswith(kind):
            return read(text)
    try:
        known = pa.type_for_alias(arrow)
    except ValueError:
        return text
    return pa.array([text]).cast(known)[0].as_py()
