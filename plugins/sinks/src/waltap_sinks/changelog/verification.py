"""A change log, opened for a comparison: the rows that its changes come to."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from waltap.files import FileStore, StorageProperties
from waltap.sink.verification import KeptTable, TableReader, VerificationSource
from waltap_sinks.changelog.current_rows import StandingRows
from waltap_sinks.changelog.errors import ChangeLogMissing
from waltap_sinks.changelog.manifest import ColumnEntry, TableEntry
from waltap_sinks.changelog.properties import ChangeLogProperties
from waltap_sinks.changelog.reader import ChangeLog
from waltap_sinks.comparison.common_text import source_text
from waltap_sinks.comparison.row_side import RowSide

__all__ = ["ComparableLog", "WritesChangeLog", "named_store", "open_readable", "profile_store"]


@runtime_checkable
class WritesChangeLog(Protocol):
    """Properties of a sink that writes a change log: where that lies."""

    @property
    def changelog(self) -> str:
        """Return the folder."""


def named_store(location: str) -> FileStore:
    """Return the files of the change log that a command names: its folder, a URI, or a profile.

    A profile says how an object store is reached. Raises: ConfigurationError; ChangeLogMissing where the
    profile writes no change log; FilesUnavailable.
    """
    if "://" in location or not Path(location).is_file():
        return FileStore(location)
    return profile_store(location)


def profile_store(file: str) -> FileStore:
    """Return the files of the change log that the profile ``file`` writes, be it beside tables.

    Raises: ConfigurationError; ChangeLogMissing where it writes none; FilesUnavailable.
    """
    from waltap.cli.profile_source import read
    from waltap.config.resolve import resolve
    from waltap.host import Host

    profile = resolve(read(file), Host())
    sinks = [outlet.sink for outlet in profile.outlets] or [profile.sink]
    for sink in sinks:
        properties = sink.properties
        if isinstance(properties, StorageProperties) and isinstance(properties, WritesChangeLog):
            return FileStore(properties.changelog, properties)
    raise ChangeLogMissing(f"the profile {file} writes no change log", path=file)


def open_readable(properties: ChangeLogProperties, pipeline: str) -> VerificationSource:
    """Open the change log of a pipeline. Raises: ChangeLogMissing."""
    log = ChangeLog(FileStore(properties.path, properties))
    if not log.exists():
        raise ChangeLogMissing(f"there is no change log at {properties.path}", path=properties.path)
    return ComparableLog(log)


class ComparableLog:
    """Tables by their newest entries; a comparison reads all changes of one, in memory.

    ``stored`` returns where the pipeline's stored offset is: up to there the log has all, also where
    nothing was to be written.
    """

    def __init__(self, log: ChangeLog) -> None:
        self._log = log
        self.stored: Callable[[], int | None] = lambda: None
        self._entries: dict[str, TableEntry] = {}

    def close(self) -> None:
        """Do nothing: nothing stays open."""

    def position(self) -> int | None:
        """Return where the newest manifest is, or the stored offset where that is later."""
        last = self._log.last()
        return None if last is None else max(last.mark.end_lsn, self.stored() or 0)

    def tables(self) -> list[KeptTable]:
        """Return the tables that the log has entries of."""
        self._entries = {}
        for manifest in self._log.manifests():
            for entry in manifest.tables:
                if entry.columns:
                    self._entries[entry.name] = entry
        return [
            KeptTable(
                name=name,
                oid=entry.oid,
                key=entry.key,
                columns={c.number: c.name for c in entry.columns if c.number is not None},
            )
            for name, entry in sorted(self._entries.items())
        ]

    def common(self, table: KeptTable, column: str, called: str, type_: str) -> str | None:
        """Return the text of what the segments have; a generated column may not be sent."""
        entries = {entry.name: entry for entry in self._entries[table.name].columns}
        found = entries.get(called)
        return None if found is None else source_text(column, type_)

    def side(
        self, table: KeptTable, columns: Sequence[tuple[str, str]], key: Sequence[str]
    ) -> TableReader:
        """Return the rows that the changes come to."""
        entry = self._entries[table.name]
        names = [called for called, _ in columns]

        def read() -> Iterable[Sequence[Any]]:
            return self._standing(entry, names, key)

        return RowSide(read, columns, key)

    def _standing(
        self, entry: TableEntry, names: Sequence[str], key: Sequence[str]
    ) -> Iterable[Sequence[Any]]:
        standing = StandingRows(names, key)
        manifests = list(self._log.manifests())
        present = {c.number: c for c in entry.columns if c.number is not None}
        for epoch, run in self._log.standing_entries(entry.name, manifests):
            called = _present_names(run.columns, present)
            missing = _missing(run.columns, entry.columns)
            gone = {
                column.name  # another may have its name now
                for column in run.columns
                if column.number is not None and column.number not in present
            }
            for segment in run.segments:
                table = self._log.store.read_parquet(segment.path)
                for row in table.to_pylist():
                    told = {
                        called.get(name, name): value
                        for name, value in row.items()
                        if name not in gone
                    }
                    for name, value in missing.items():
                        told.setdefault(name, value)
                    if told.get("_unchanged"):
                        unsent = [name for name in told["_unchanged"] if name not in gone]
                        told["_unchanged"] = [called.get(name, name) for name in unsent]
                    standing.apply(
                        row["_op"],
                        told,
                        transaction=(epoch, row["_commit_lsn"]),
                        second=row["_sub"] == 1,
                    )
        return standing.rows()


def _present_names(
    columns: Sequence[ColumnEntry], present: dict[int, ColumnEntry]
) -> dict[str, str]:
    """Return what columns of a segment are called now, where that differs."""
    return {
        column.name: present[column.number].name
        for column in columns
        if column.number in present and present[column.number].name != column.name
    }


def _missing(columns: Sequence[ColumnEntry], now: Sequence[ColumnEntry]) -> dict[str, Any]:
    """Return what rows of before have in columns that were added since."""
    had = {column.number for column in columns}
    return {c.name: _value(c) for c in now if c.number not in had and c.missing is not None}


def _value(column: ColumnEntry) -> Any:
    """Return `ColumnEntry.missing` as a segment would give it."""
    import pyarrow as pa

    assert column.missing is not None
    if column.arrow == "binary":
        return bytes.fromhex(column.missing)
    try:
        kind = pa.type_for_alias(column.arrow)
    except ValueError:
        return column.missing
    return pa.array([column.missing]).cast(kind)[0].as_py()
