"""The output: commits, and the state of its tables.

One commit covers all tables: it names, for the position of the change log that was applied, the
folders of every table. A commit appears completely or not at all, so a Spark driver may die at
any moment: folders that no commit names are ignored, and the next start removes them.

::

    tables/SCHEMA/TABLE/changes/COMMIT-ATTEMPT/   Parquet: rows of the change log, in sets.
    tables/SCHEMA/TABLE/changes/COMMIT-ATTEMPT.parquet   A small set.
    tables/SCHEMA/TABLE/current/COMMIT-ATTEMPT/   Parquet: rows of the table at some commit.
    tables/SCHEMA/TABLE/delta/changes/            Delta: the history, a table of its own.
    tables/SCHEMA/TABLE/delta/current/            Delta: the rows. A catalogue has places of its own.
    _waltap/commits/COMMIT.json                   `OutputState`, see `waltap_spark.state.commit_files`.
    _waltap/intent.json                           `CommitIntent`: the commit that began last.
    _waltap/garbage/COMMIT.json                   `DroppedFiles`: sets that a commit dropped.
    _waltap/checkpoint/                           Spark's own.
    _waltap/handed/SNAPSHOT/tables/SCHEMA/TABLE/  see `waltap_spark.apply.external_snapshots`

This module does not import Spark.
"""

import logging
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from waltap.base.files.errors import FilesInUse, FilesUnavailable
from waltap.base.files.store import FileStore, safe_name
from waltap_sinks.changelog.manifest import NOTHING, ColumnEntry, LogPosition
from waltap_spark.errors import OutputInUse, OutputMismatch, TableUnknown
from waltap_spark.state.commit_files import MAX_COMMITS, CommitFiles, NumberedState, read_document
from waltap_spark.state.modes import PLAIN, TableMode

# The default name of the column with a row's source.
COLUMN: Final = "_source"


class TargetMapping(msgspec.Struct, frozen=True, kw_only=True):
    """A source's part of a target: rows with ``source`` in ``column``."""

    schema: str
    table: str
    source: str
    column: str = COLUMN

    @property
    def name(self) -> str:
        """Return the target's name, ``schema.table``."""
        return f"{self.schema}.{self.table}"


log = logging.getLogger(__name__)


# Sets that commits no longer name stay for a while, for readers of an earlier commit.
#
# Each commit's dropped sets are written to a file of their own before the commit: so later
# commits do not repeat them, and readers do not read them.

FOLDER: Final = "_waltap/garbage"


class _DroppedPaths(msgspec.Struct, frozen=True, kw_only=True):
    """Sets that one commit dropped."""

    # Seconds since 1970.
    since: float
    paths: tuple[str, ...]


class DroppedFiles:
    """Sets that the output's commits dropped, with their times."""

    def __init__(self, store: FileStore) -> None:
        self._store = store

    def note(self, number: int, paths: Iterable[str]) -> None:
        """Record the sets that commit ``number`` drops.

        This happens before the commit appears, and replaces the file of an attempt that failed.
        """
        dropped = _DroppedPaths(since=time.time(), paths=tuple(sorted(paths)))
        path = f"{FOLDER}/{_name(number)}"
        if dropped.paths:
            self._store.put(path, msgspec.json.encode(dropped) + b"\n")
        else:
            self._store.delete(path)

    def forget_after(self, number: int) -> None:
        """Forget the drops of commits after ``number``, which never appeared."""
        for name in self._store.names(FOLDER):
            if name > _name(number):
                self._store.delete(f"{FOLDER}/{name}")

    def paths(self) -> set[str]:
        """Return all dropped sets that still exist.

        Raises: OutputDamaged.
        """
        found: set[str] = set()
        for name in self._store.names(FOLDER):
            try:
                found.update(self._read(name).paths)
            except FilesUnavailable as error:
                # another driver has removed the sets since the listing
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
        return found

    def due(self, retention_s: float, number: int) -> Iterable[tuple[str, tuple[str, ...]]]:
        """Yield (file, paths) that were dropped ``retention_s`` ago, oldest first.

        Only commits up to ``number`` count: while a commit has not appeared, the one before it
        still names the sets that it drops. Raises: OutputDamaged.
        """
        now, ahead = time.time(), list[tuple[str, tuple[str, ...]]]()
        for name in self._store.names(FOLDER):
            if name > _name(number):
                return
            dropped = self._read(name)
            if now - retention_s < dropped.since <= now:
                return
            ahead.append((f"{FOLDER}/{name}", dropped.paths))
            # of a clock that was ahead: a later commit shows that the time has passed
            if dropped.since <= now:
                yield from ahead
                ahead.clear()

    def _read(self, name: str) -> _DroppedPaths:
        problem = "does not say what was dropped"
        return read_document(self._store, f"{FOLDER}/{name}", _DroppedPaths, problem)


def _name(number: int) -> str:
    return f"{number:012d}.json"


VERSION: Final = 2
INTENT: Final = "_waltap/intent.json"
# The suffix of a set that is one file; other sets are folders that Spark wrote.
FILE: Final = ".parquet"


# What identifies the table of a log entry: epoch, ``schema.table``, number in the source.
EntryId = tuple[int, str, int]


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Log rows that one commit added to one table."""

    path: str
    # Names the schema in `TableState.file_schemas`.
    fingerprint: str
    rows: int
    operations: dict[str, int] = {}
    # Columns for which a row says that its value is the earlier one.
    unchanged: tuple[str, ...] = ()
    # Rows that got a new key.
    key_changes: int = msgspec.field(name="moved", default=0)
    # Whether a transaction deleted a key that it had put before (`TableEntry.key_reused`).
    key_reused: bool = msgspec.field(name="crossed", default=False)
    # How often the set was merged with others.
    level: int = 0
    # The change log's epoch.
    epoch: int = 0
    # Whether the set is a whole snapshot.
    replaces: bool = False
    # Size of a set that is one file, 0 for a folder of Spark's.
    bytes: int = 0
    # Bytes of the values (`Segment.unpacked`).
    unpacked: int = 0
    # The gap-free run of the rows, as in `TableEntry.continuity_id`.
    continuity_id: str = msgspec.field(name="stretch", default="")


class StagedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of an incomplete snapshot.

    The segment stays in the change log until its snapshot is complete.
    """

    snapshot_id: int = msgspec.field(name="generation")
    path: str
    fingerprint: str
    rows: int
    key: tuple[str, ...]
    columns: tuple[ColumnEntry, ...] = ()
    oid: int = 0
    bytes: int = 0
    unpacked: int = 0
    continuity_id: str = msgspec.field(name="stretch", default="")


class BasePart(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a table at some commit.

    The rows are a folder of their own, or a change set that holds only rows of the table.
    """

    path: str
    rows: int
    # The columns of the files that belong to the table.
    columns: dict[str, str]
    # The change log's epoch in which the rows were last true.
    epoch: int
    # As in `TableState.version_ids`.
    ids: dict[str, int] = {}
    # Whether the mode's columns are made from the log's columns.
    logged: bool = False
    # Whether the rows are ended versions, which no change touches.
    closed: bool = False
    # The continuity id of all the rows, "" where a change may be missing among them.
    continuity_id: str = msgspec.field(name="stretch", default="")


P = TypeVar("P", bound=BasePart | ChangeSet)


def replaced_sets(
    now: Sequence[P], before: Iterable[BasePart | ChangeSet], after: Iterable[P]
) -> tuple[P, ...] | None:
    """Apply the change from ``before`` to ``after`` to ``now``.

    None means that a replaced item is no longer there.
    """
    had, has = {each.path for each in before}, {each.path for each in after}
    gone = had - has
    new = [each for each in after if each.path not in had]
    if not gone <= {each.path for each in now}:
        return None
    found: list[P] = []
    for each in now:
        if each.path not in gone:
            found.append(each)
        elif new:
            found += new
            new = []
    return (*new, *found)


class TargetTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a format that is written in place."""

    # The table's name or path in SQL.
    at: str
    # The version that the commit names, and the step that made it
    # (`waltap_spark.formats.merging`).
    version: int = -1
    step: int = 0
    # The version that restored the table after another writer's commit. Earlier steps may have
    # the numbers of later steps.
    since: int | None = None


class StoredTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A table's storage in a format that is written in place."""

    targets: dict[str, TargetTable] = {}
    # The columns that the targets have, in Spark's types.
    columns: dict[str, str] = {}
    # The epoch of all rows, 0 while there are none, and their continuity id as in `BasePart`.
    epoch: int = 0
    continuity_id: str = msgspec.field(name="stretch", default="")
    # Steps at the last compaction.
    compacted: int = 0
    # Time of the last removal of old files.
    vacuumed: float = 0.0
    # Columns that partitioned the files when the targets were made, by their present names.
    divided: tuple[str, ...] = ()


class TableState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The state of one table. Types are Spark's JSON.

    Columns are known by the source's numbers: a renamed column stays the same column, and
    another column of the same name is a different one (`waltap_spark.planning.column_identity`).
    """

    schema: str
    table: str
    key: tuple[str, ...] = ()
    # Name → type of all columns the table ever had, in order of appearance.
    columns: dict[str, str] = {}
    # Fingerprint → columns of a change set's files.
    file_schemas: dict[str, dict[str, str]] = msgspec.field(name="versions", default_factory=dict)
    # Parquet only: rows that the pending changes, in order, are not applied to yet.
    base: tuple[BasePart, ...] = ()
    pending: tuple[ChangeSet, ...] = ()
    # All change sets, with the pending ones.
    changes: tuple[ChangeSet, ...] = ()
    staged: tuple[StagedSegment, ...] = ()
    # The columns that the source has now.
    source_columns: tuple[str, ...] = ()
    # Name → number of the columns in ``columns``.
    ids: dict[str, int] = {}
    # Fingerprint → the same for the names in its files.
    version_ids: dict[str, dict[str, int]] = {}
    # Present name → the change log's last entry of the column.
    source: dict[str, ColumnEntry] = {}
    # The columns that the server streams, None while only snapshots were seen.
    streamed: tuple[str, ...] | None = None
    # The table's number in the source, how often another table took its name, and the numbers of
    # those tables.
    oid: int = 0
    incarnation: int = 0
    former: tuple[int, ...] = ()
    # The change log's epoch in which the number was last seen, 0 if unknown.
    oid_epoch: int = 0
    # Schema and table under which a format in place began to keep it, if they were others.
    stored_at: tuple[str, str] | None = msgspec.field(name="kept_at", default=None)
    # Its former names, ``schema.table``.
    former_names: tuple[str, ...] = msgspec.field(name="called", default=())
    # Why rows may differ from the source's until a snapshot replaces them.
    stale: tuple[str, ...] = ()
    # Notes on columns whose type became wider since.
    widened: tuple[str, ...] = ()
    # Why the table is suspended, and its position then; other tables continue.
    failed: str = ""
    log_position: LogPosition | None = msgspec.field(name="mark", default=None)
    # Positions that attempts to apply it have reached since.
    attempts: tuple[LogPosition, ...] = ()
    # What identifies its entries after that position, in order.
    waits: tuple[EntryId, ...] = ()
    # The storage of formats in place.
    stored_table: StoredTable = msgspec.field(name="held", default=StoredTable())
    mode: TableMode = msgspec.field(name="kept_as", default=PLAIN)
    # Its part in a target of several tables.
    place: TargetMapping | None = None
    # The operator chose text for columns whose types do not fit (`waltap_spark.apply.resume_requests`).
    as_text: bool = False
    # The damaged segment that suspends the table, and the segments that the operator chose to
    # skip.
    damaged: str = ""
    passed: tuple[str, ...] = ()
    # The epoch of the change log in which a snapshot last replaced the rows.
    snapshot_epoch: int = 0
    # Rows that Spark tasks read from the source for the last such snapshot, and their values that
    # are null here because a column cannot hold them.
    rows_of_splits: int = 0
    split_nulls: tuple[str, ...] = msgspec.field(name="handed_nulls", default=())

    @property
    def name(self) -> str:
        """Return ``schema.table``."""
        return f"{self.schema}.{self.table}"

    @property
    def target(self) -> tuple[str, str]:
        """Return schema and name of the table that holds its rows."""
        place = self.place
        return (self.schema, self.table) if place is None else (place.schema, place.table)

    @property
    def target_name(self) -> str:
        """Return the target's name, which a profile's rules match."""
        return ".".join(self.target)

    @property
    def storage(self) -> tuple[str, str]:
        """Return the schema and table under which its rows are kept."""
        return self.target if self.place is not None else self.stored_at or self.target

    @property
    def owner(self) -> str:
        """Return the table's name in notes of commits."""
        return ".".join(self.stored_at or (self.schema, self.table))

    @property
    def target_folder(self) -> str:
        return f"tables/{'/'.join(map(safe_name, self.storage))}"

    @property
    def folder(self) -> str:
        return f"tables/{safe_name(self.schema)}/{safe_name(self.table)}"

    @property
    def hidden(self) -> tuple[str, ...]:
        """Return the columns that the server computes and does not stream.

        A snapshot read their values, which the next update outdates. So they are not shown as
        present values of a row.
        """
        sent = self.streamed or ()
        return tuple(
            name for name, entry in self.source.items() if entry.generated and name not in sent
        )

    @property
    def comparable(self) -> dict[str, str]:
        """Return name → type of the columns that changes have now.

        Rows have more: dropped columns, columns that are left out, and the `hidden` ones. Only
        these columns can identify the row that a change without a key means. All columns, while
        the source's columns are unknown.
        """
        hidden = self.hidden
        return {
            name: kind
            for name, kind in self.columns.items()
            if name in self.source_columns and name not in hidden
        } or self.columns

    def with_storage(self, **changes: object) -> "TableState":
        """Return the table with ``changes`` of `StoredTable`."""
        stored_table = msgspec.structs.replace(self.stored_table, **changes)
        return msgspec.structs.replace(self, stored_table=stored_table)

    @property
    def row_columns(self) -> dict[str, str]:
        """Return the source's columns, then the mode's columns."""
        return {**self.columns, **self.mode.columns}

    @property
    def row_key(self) -> tuple[str, ...]:
        """Return the columns that identify a row."""
        return (*self.key, "_from_epoch", "_from_lsn") if self.mode.name == "scd2" else self.key

    def paths(self) -> set[str]:
        found = {change.path for change in (*self.changes, *self.pending)}
        return found | {part.path for part in self.base}

    @property
    def base_rows(self) -> int:
        return sum(part.rows for part in self.base)

    @property
    def stored_rows(self) -> int:
        return self.base_rows + sum(change.rows for change in self.pending)

    @property
    def open_rows(self) -> int:
        """Return the number of base rows that a change may touch."""
        return sum(part.rows for part in self.base if not part.closed)


# Table → kind of target → version.
Versions = dict[str, dict[str, int]]


class VersionMap(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An earlier commit: its position, and changed versions."""

    number: int
    log_position: LogPosition = msgspec.field(name="mark")
    committed_at: float
    last_commit_ts: int | None
    versions: Versions
    # Name → the name before, of tables that the source renamed.
    was: dict[str, str] = {}


class OutputState(NumberedState, msgspec.Struct, frozen=True, kw_only=True):
    """The whole content of one commit."""

    version: int
    log_position: LogPosition = msgspec.field(name="mark")
    # The log's location when the commit was written.
    changelog: str
    committed_at: float
    tables: dict[str, TableState] = {}
    rows_applied: int = 0
    last_commit_ts: int | None = None
    # The log's own id, and the output's, each given once.
    log_id: str = ""
    identity: str = ""
    # The tables' format and its properties.
    format: str = "parquet"
    format_values: dict[str, str] = {}
    # The newest commits (`waltap_spark.state.version_maps`), and the tables' versions before them.
    cuts: tuple[VersionMap, ...] = ()
    cuts_before: Versions = {}
    # For each epoch that some table has still to apply: the highest LSN of the epochs before it
    # (`waltap_spark.planning.redelivery`).
    reached_by: tuple[tuple[int, int], ...] = ()

    def dropped(self, tables: Mapping[str, TableState]) -> set[str]:
        """Return the folders that the next commit no longer names."""
        same = {name for name, table in tables.items() if self.tables.get(name) is table}
        found = set[str]()
        for name, had in self.tables.items():
            found |= set() if name in same else had.paths()
        # a renamed table has its paths under another name
        for name, table in tables.items():
            found -= set() if name in same else table.paths()
        return found


class TargetMove(msgspec.Struct, frozen=True, kw_only=True):
    """A rename in a catalogue.

    ``table`` is the table's name in the source after it, ``what`` its rows or its history.
    ``identity`` is the catalogue's id of the table.
    """

    table: str
    what: str
    identity: str
    old: str
    new: str


class CommitIntent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A commit that a driver began: its number and end.

    A format that writes in place may have written for it, so the next driver first commits
    exactly up to this position.
    """

    number: int
    log_position: LogPosition = msgspec.field(name="mark")
    identity: str
    # Tables that it renames in the catalogue.
    moves: tuple[TargetMove, ...] = ()


def applied_by_all(state: OutputState) -> LogPosition:
    """Return the position up to which every table applied the log."""
    own = (each.log_position for each in state.tables.values() if each.log_position)
    return min([state.log_position, *own])


# Hadoop no longer supports the other names of S3.
S3: Final = frozenset({"s3", "s3n"})


def address(store: FileStore, path: str) -> str:
    """Return the Hadoop address of ``path`` in ``store``."""
    found = store.uri(path)
    if store.local:
        return f"file://{found}"
    scheme, _, rest = found.partition("://")
    return f"s3a://{rest}" if scheme.lower() in S3 else found


class SparkOutput:
    """The folders and commits below one location.

    The location is a path, the URI of a filesystem, or its files.
    """

    def __init__(self, location: "FileStore | str") -> None:
        self.store = location if isinstance(location, FileStore) else FileStore(location)
        self.location = self.store.location
        self.garbage = DroppedFiles(self.store)
        self._commits = CommitFiles(self.store, OutputState)
        self._number = 0

    # --- reading ----------------------------------------------------------------------------------

    def state(self) -> OutputState | None:
        """Return the newest commit's state, None before the first.

        Raises: OutputDamaged.
        """
        found = self._commits.newest(1)
        return found[-1] if found else None

    def readable_states(self) -> list[OutputState]:
        """Return the states of the commits that still exist, oldest first.

        Raises: OutputDamaged.
        """
        return self._commits.newest(MAX_COMMITS)

    def table(self, name: str, state: OutputState | None = None) -> TableState:
        """Return the table called ``schema.table``, or ``table`` when unique.

        Raises: TableUnknown.
        """
        state = state or self.state()
        tables = state.tables if state is not None else {}
        if name in tables:
            return tables[name]
        found = [table for table in tables.values() if table.table == name]
        if len(found) == 1:
            return found[0]
        known = ", ".join(sorted(tables)) or "none yet"
        raise TableUnknown(f"no table {name} in {self.location}", known=known)

    def uri(self, path: str) -> str:
        return address(self.store, path)

    # --- writing ----------------------------------------------------------------------------------

    def open(self, changelog: str, log_id: str = "") -> OutputState:
        """Lock the output for writing, and remove a crash's leftovers.

        ``changelog`` is the log's location, ``log_id`` its id. The id identifies the log, since
        both folders may have been moved. Raises: OutputInUse, OutputMismatch, OutputDamaged.
        """
        try:
            self.store.lock(".lock")
        except FilesInUse as cause:
            holder = cause.problem.rpartition(" ")[2]
            text = f"{self.location} is being written by process {holder}"
            raise OutputInUse(text, holder=holder) from cause
        self._commits.forget()
        state = self.state()
        self._number = 0 if state is None else state.number
        # A first commit that was begun may have written tables under its identity.
        if state is None:
            begun = self.intent()
            return OutputState(
                version=VERSION,
                number=0,
                log_position=NOTHING,
                changelog=changelog,
                committed_at=0.0,
                log_id=log_id,
                identity=uuid.uuid4().hex if begun is None else begun.identity,
            )
        if state.log_id != log_id:
            raise OutputMismatch(
                f"{self.location} was made from the change log {state.changelog}, not {changelog}",
                output=self.location,
                changelog=changelog,
            )
        state = msgspec.structs.replace(state, version=VERSION, changelog=changelog)
        self._remove_unnamed(state)
        return state

    def close(self) -> None:
        self._commits.forget()
        self.store.unlock()

    def sync(self, path: str, size: int = 0) -> None:
        """Make Spark's files durable with the next commit."""
        if path.endswith(FILE):
            self.store.sync(path, size)
            return
        for name in self.store.names(path):
            self.store.sync(f"{path}/{name}")

    def remove(self, path: str) -> None:
        if path.endswith(FILE):
            self.store.delete(path)
        else:
            self.store.delete_folder(path)

    def delete_orphans(self, given: Iterable[str], *tables: TableState) -> None:
        """Remove the sets of ``given`` that no table names."""
        named = {path for table in tables for path in table.paths()} if given else set()
        for path in given:
            try:
                if path not in named:
                    self.remove(path)
            except FilesUnavailable as error:
                log.warning(
                    "a set of files that no commit names stays until the next start: %s", error
                )

    def intent(self) -> CommitIntent | None:
        """Return the last commit that was begun, None when none was.

        Raises: OutputDamaged.
        """
        if not self.store.has(INTENT):
            return None
        return read_document(self.store, INTENT, CommitIntent, "says not which commit was begun")

    def begun(self, state: OutputState) -> CommitIntent | None:
        """Return a commit that a driver began after ``state``, or None."""
        intent = self.intent()
        return None if intent is None or intent.number <= state.number else intent

    def intend(self, intent: CommitIntent) -> None:
        """Record durably that the commit begins."""
        self.store.publish(INTENT, msgspec.json.encode(intent) + b"\n")

    def commit(self, state: OutputState) -> None:
        """Make ``state`` the newest commit, atomically."""
        self._commits.write(state)
        self._number = state.number

    def collect(self, retention_s: float) -> int:
        """Remove sets that no commit named for ``retention_s``.

        Return their number. The output must be open.
        """
        removed = 0
        for name, paths in self.garbage.due(retention_s, self._number):
            for path in paths:
                self.remove(path)
            self.store.delete(name)
            removed += len(paths)
        return removed

    def _remove_unnamed(self, state: OutputState) -> None:
        """Remove sets that no commit names.

        In an object store another machine's driver may still write the next commit: its sets
        stay until a later start.
        """
        self.garbage.forget_after(state.number)
        named = self.garbage.paths()
        for table in state.tables.values():
            named |= table.paths()
        for schema in self.store.folders("tables"):
            for table_name in self.store.folders(f"tables/{schema}"):
                for kind in ("changes", "current"):
                    folder = f"tables/{schema}/{table_name}/{kind}"
                    for name in [*self.store.folders(folder), *self.store.names(folder)]:
                        begun = name[:12]
                        later = begun.isdigit() and int(begun) > state.number
                        written = later and not self.store.local
                        if f"{folder}/{name}" not in named and not written:
                            self.remove(f"{folder}/{name}")
