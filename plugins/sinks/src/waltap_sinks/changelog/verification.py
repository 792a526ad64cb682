"""Read a change log for a comparison."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from waltap.base.files.properties import StorageProperties
from waltap.base.files.store import FileStore
from waltap.base.import_rules import pa
from waltap.ports.sink.verification import ComparedTable, TableReader, VerificationSource
from waltap_sinks.changelog.errors import ChangeLogMissing
from waltap_sinks.changelog.manifest import ColumnEntry, TableEntry
from waltap_sinks.changelog.properties import ChangeLogProperties
from waltap_sinks.changelog.reader import ChangeLog
from waltap_sinks.comparison.common_text import source_text
from waltap_sinks.comparison.table_readers import RowTableReader

# A transaction may put a row under a key before it deletes the existing one (rows that change
# places), or put a row under a key and move it. Of two rows under one key a delete removes the older
# one.

Key = tuple[Any, ...]


class CurrentRows:
    """Apply changes to the rows of one table, in order.

    Without a key the rows are a multiset.
    """

    def __init__(self, columns: Sequence[str], key: Sequence[str]) -> None:
        self._columns = tuple(columns)
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
        parts = (values[n] for n in self._key)
        return tuple([tuple(part) if isinstance(part, list) else part for part in parts])

    def _count(self, row: list[Any], by: int) -> None:
        written = repr(row)  # lists do not hash, and NaN equals nothing
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


class ComparableLog:
    """Read the tables of a change log by their newest entries.

    A comparison reads all changes of one table into memory.
    """

    def __init__(self, log: ChangeLog) -> None:
        self._log = log
        # Returns the stored offset: the log has everything before it, also where nothing was written.
        self.stored_offset: Callable[[], int | None] = lambda: None
        self._entries: dict[str, TableEntry] = {}

    def close(self) -> None:
        """Do nothing: no file is open."""

    def position(self) -> int | None:
        """Return the later of the newest manifest and the stored offset."""
        last = self._log.last()
        return None if last is None else max(last.log_position.end_lsn, self.stored_offset() or 0)

    def tables(self) -> list[ComparedTable]:
        self._entries = {}
        for manifest in self._log.manifests():
            for entry in manifest.tables:
                if entry.columns:
                    self._entries[entry.name] = entry
        return [
            ComparedTable(
                name=name,
                oid=entry.oid,
                key=entry.key,
                columns={c.number: c.name for c in entry.columns if c.number is not None},
            )
            for name, entry in sorted(self._entries.items())
        ]

    def common(self, table: ComparedTable, column: str, called: str, type_: str) -> str | None:
        """Return a column's text in the segments, or None."""
        entries = {entry.name: entry for entry in self._entries[table.name].columns}
        found = entries.get(called)
        return None if found is None else source_text(column, type_)

    def reader(
        self, table: ComparedTable, columns: Sequence[tuple[str, str]], key: Sequence[str]
    ) -> TableReader:
        entry = self._entries[table.name]
        names = [called for called, _ in columns]

        def read() -> Iterable[Sequence[Any]]:
            return self._live(entry, names, key)

        return RowTableReader(read, columns, key)

    def _live(
        self, entry: TableEntry, names: Sequence[str], key: Sequence[str]
    ) -> Iterable[Sequence[Any]]:
        live = CurrentRows(names, key)
        manifests = list(self._log.manifests())
        present = {c.number: c for c in entry.columns if c.number is not None}
        for epoch, run in self._log.entries(entry.name, manifests, skip_replaced=True):
            called = _present_names(run.columns, present)
            missing = _missing(run.columns, entry.columns)
            gone = {
                column.name  # a new column may have its name
                for column in run.columns
                if column.number is not None and column.number not in present
            }
            for segment in run.segments:
                table = self._log.store.read_parquet(segment.path)
                for row in table.to_pylist():
                    values = {
                        called.get(name, name): value
                        for name, value in row.items()
                        if name not in gone
                    }
                    for name, value in missing.items():
                        values.setdefault(name, value)
                    if values.get("_unchanged"):
                        unsent = [name for name in values["_unchanged"] if name not in gone]
                        values["_unchanged"] = [called.get(name, name) for name in unsent]
                    live.apply(
                        row["_op"],
                        values,
                        transaction=(epoch, row["_commit_lsn"]),
                        second=row["_sub"] == 1,
                    )
        return live.rows()


def _present_names(
    columns: Sequence[ColumnEntry], present: dict[int, ColumnEntry]
) -> dict[str, str]:
    """Return the new names of renamed columns."""
    return {
        column.name: present[column.number].name
        for column in columns
        if column.number in present and present[column.number].name != column.name
    }


def _missing(columns: Sequence[ColumnEntry], now: Sequence[ColumnEntry]) -> dict[str, Any]:
    """Return the values that older rows have in new columns."""
    had = {column.number for column in columns}
    return {c.name: _value(c) for c in now if c.number not in had and c.missing is not None}


def _value(column: ColumnEntry) -> Any:
    assert column.missing is not None
    if column.arrow == "binary":
        return bytes.fromhex(column.missing)
    try:
        kind = pa.type_for_alias(column.arrow)
    except ValueError:
        return column.missing
    return pa.array([column.missing]).cast(kind)[0].as_py()
