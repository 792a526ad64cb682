"""Where the tables stand: folders of Parquet files, and commits that say which of them count.

One commit covers all tables: it names, for the mark of the change log that was applied, the folders
of every table. It appears whole or not at all, so a Spark driver may die at any moment: folders that
no commit names count for nothing and are removed at the next start.

::

    tables/SCHEMA/TABLE/changes/COMMIT-ATTEMPT/   rows of the change log, in sets; a small one is
    tables/SCHEMA/TABLE/changes/COMMIT-ATTEMPT.parquet
    tables/SCHEMA/TABLE/current/COMMIT-ATTEMPT/   rows as they stood at some commit
    _waltap/commits/COMMIT.json                   `OutputState`, see `waltap_spark.commit_files`
    _waltap/checkpoint/                           Spark's own
    _waltap/handed/SNAPSHOT/tables/SCHEMA/TABLE/  see `waltap_spark.external_snapshots`

This module knows no Spark.
"""

import logging
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import msgspec

from waltap.base.decode_errors import UNREADABLE
from waltap.base.files.errors import FilesInUse, FilesUnavailable
from waltap.base.files.store import FileStore, safe_name
from waltap_sinks.changelog.continuity import same_place
from waltap_sinks.changelog.manifest import NOTHING, ColumnEntry, LogPosition
from waltap_spark.addresses import address
from waltap_spark.commit_files import CommitFiles
from waltap_spark.errors import OutputDamaged, OutputInUse, OutputMismatch, TableUnknown
from waltap_spark.modes import PLAIN, TableMode
from waltap_spark.target_mapping import TargetMapping

__all__ = [
    "FILE",
    "BasePart",
    "ChangeSet",
    "CommitIntent",
    "LogFacts",
    "OrphanFiles",
    "OutputState",
    "SparkOutput",
    "StagedSegment",
    "StoredTable",
    "TableState",
    "TargetTable",
    "VersionMap",
    "Versions",
    "applied_by_all",
    "unpacked_in_all",
]

log = logging.getLogger(__name__)


# Sets that no commit names any more: they stay for a while, for those who read an earlier commit.
#
# What a commit stops naming is written down before the commit is, in a file of its own: however
# much that is, no commit says it again, and no reader reads it.

FOLDER: Final = "_waltap/garbage"


class _DroppedPaths(msgspec.Struct, frozen=True, kw_only=True):
    """What one commit dropped; ``since``: seconds since 1970."""

    since: float
    paths: tuple[str, ...]


class OrphanFiles:
    """What the commits of one output dropped, and when."""

    def __init__(self, store: FileStore) -> None:
        self._store = store

    def note(self, number: int, paths: Iterable[str]) -> None:
        """Write down what commit ``number`` is to drop; before it appears. What an attempt at it that
        failed was to drop counts no more."""
        dropped = _DroppedPaths(since=time.time(), paths=tuple(sorted(paths)))
        path = f"{FOLDER}/{_name(number)}"
        if dropped.paths:
            self._store.put(path, msgspec.json.encode(dropped) + b"\n")
        else:
            self._store.delete(path)

    def forget_after(self, number: int) -> None:
        """Forget what commits after ``number`` were to drop: they never appeared."""
        for name in self._store.names(FOLDER):
            if name > _name(number):
                self._store.delete(f"{FOLDER}/{name}")

    def paths(self) -> set[str]:
        """Return all that is still there. Raises: OutputDamaged."""
        found: set[str] = set()
        for name in self._store.names(FOLDER):
            try:
                found.update(self._read(name).paths)
            except FilesUnavailable as error:  # a driver has collected it since: the sets are gone
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
        return found

    def due(self, grace_s: float, number: int) -> Iterable[tuple[str, tuple[str, ...]]]:
        """Return (file, paths) of what commits up to ``number`` dropped ``grace_s`` ago, oldest first:
        of a commit that did not appear, the one before it still names what it was to drop.

        Raises: OutputDamaged.
        """
        limit = time.time() - grace_s
        for name in self._store.names(FOLDER):
            if name > _name(number):
                return
            dropped = self._read(name)
            if dropped.since > limit:
                return
            yield f"{FOLDER}/{name}", dropped.paths

    def _read(self, name: str) -> _DroppedPaths:
        path = f"{FOLDER}/{name}"
        try:
            return msgspec.json.decode(self._store.read(path), type=_DroppedPaths)
        except UNREADABLE as cause:
            text = f"{path} does not say what was dropped: {cause}"
            raise OutputDamaged(text, path=self._store.uri(path)) from cause


def _name(number: int) -> str:
    return f"{number:012d}.json"


VERSION: Final = 2
INTENT: Final = "_waltap/intent.json"
FILE: Final = ".parquet"
"""How the path of a set ends that is a file; other sets are folders, as Spark writes them."""


class ChangeSet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Rows of the change log that one commit added to one table, under one schema.

    ``fingerprint`` names the schema in `TableState.versions`. ``unchanged`` are columns for which
    a row says that its value is the earlier one, ``moved`` counts rows that got a new key besides.
    ``crossed``: whether a transaction deleted a key that it had put before (`TableEntry.crossed`).
    ``level`` counts how often the set was merged with others. ``epoch`` is the change log's, 0 where an
    earlier version wrote the set. ``replaces``: it is a whole snapshot. ``bytes``: of a set that is one
    file, 0 for a folder of Spark's. ``unpacked``: of the values (`Segment.unpacked`). ``stretch``: as
    `TableEntry.stretch` has it.
    """

    path: str
    fingerprint: str
    rows: int
    operations: dict[str, int] = {}
    unchanged: tuple[str, ...] = ()
    moved: int = 0
    crossed: bool = False
    level: int = 0
    epoch: int = 0
    replaces: bool = False
    bytes: int = 0
    unpacked: int = 0
    stretch: str = ""


class LogFacts(Protocol):
    """What is known of some rows of the change log before they are read; see `ChangeSet`."""

    @property
    def rows(self) -> int: ...
    @property
    def operations(self) -> Mapping[str, int]: ...
    @property
    def unchanged(self) -> Iterable[str]: ...
    @property
    def moved(self) -> int: ...
    @property
    def crossed(self) -> bool: ...
    @property
    def replaces(self) -> bool: ...
    @property
    def unpacked(self) -> int: ...


class SizedRows(Protocol):
    """What has rows with values of so many bytes, 0 where it is not known."""

    @property
    def rows(self) -> int: ...
    @property
    def unpacked(self) -> int: ...


def unpacked_in_all(parts: Iterable[SizedRows]) -> int:
    """Return the bytes of the values of all ``parts``; 0 where it is not known of some."""
    each = [part.unpacked for part in parts if part.rows]
    return sum(each) if all(each) else 0


class OfStretch(Protocol):
    """Rows of one stretch of the change log (`TableEntry.stretch`)."""

    @property
    def stretch(self) -> str: ...


def shared_stretch(parts: Iterable[OfStretch]) -> str:
    """Return the stretch that all ``parts`` are of, "" where they are of several, or it is not known."""
    found = {part.stretch for part in parts}
    return found.pop() if len(found) == 1 else ""


class StagedSegment(msgspec.Struct, frozen=True, kw_only=True):
    """A segment of a snapshot that is not complete yet; it stays in the change log until then."""

    generation: int
    path: str
    fingerprint: str
    rows: int
    key: tuple[str, ...]
    columns: tuple[ColumnEntry, ...] = ()
    oid: int = 0
    bytes: int = 0
    unpacked: int = 0
    stretch: str = ""


class BasePart(msgspec.Struct, frozen=True, kw_only=True):
    """Rows of a table as they stood at some commit: a folder of its own, or a change set whose rows
    are nothing but rows of the table. ``columns`` are those that its files have and that count;
    ``epoch`` is that of the change log in which the rows were last true; ``ids`` as in
    `TableState.version_ids`; ``logged``: the columns of the table's mode are made from the log's;
    ``closed``: they are versions that ended, which no change changes any more; ``stretch`` that in which
    all of the rows came, "" where a change may be missing among them."""

    path: str
    rows: int
    columns: dict[str, str]
    epoch: int
    ids: dict[str, int] = {}
    logged: bool = False
    closed: bool = False
    stretch: str = ""


class TargetTable(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a format that is written in place: what SQL calls it, the version that counts, and the
    step that made it (`waltap_spark.formats.merging`). ``since``: the version that brought it back, where
    somebody else had written it; steps before that may have had the numbers of later ones."""

    at: str
    version: int = -1
    step: int = 0
    since: int | None = None


class StoredTable(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What such a format holds of one table. ``columns`` are those it has, in Spark's types; ``epoch`` is
    the one in which all its rows came, 0 while there are none, ``stretch`` as `BasePart` has it.
    ``compacted``: steps at the last compaction; ``vacuumed``: when old files were removed last.
    ``divided``: columns by which files were divided when the targets were made, as they are called now."""

    targets: dict[str, TargetTable] = {}
    columns: dict[str, str] = {}
    epoch: int = 0
    stretch: str = ""
    compacted: int = 0
    vacuumed: float = 0.0
    divided: tuple[str, ...] = ()


class TableState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One table. Spark types are given as Spark's JSON.

    ``columns``: name → type, of all columns the table ever had, in order of appearance.
    ``versions``: fingerprint → columns of a change set's files. ``base``: folders of rows that
    ``pending`` changes (in order) have still to be applied to.
    ``changes``: all change sets, the pending ones included.

    Columns are known by the source's numbers, so that a renamed one stays the same and another of
    the same name is another (`waltap_spark.column_identity`). ``ids``: name → number of those in
    ``columns``; ``version_ids``: fingerprint → the same for the names in its files. ``source``: what
    the change log last said of each column, by its present name; ``source_columns`` those that the
    source has now. ``streamed``: those that the server streams, None while only snapshots were seen.
    ``oid`` and ``incarnation``: the table's number in the source, and how often another took its name;
    ``former``: the numbers of those before.
    ``stale``: why rows may differ from the source's until a snapshot replaces them.

    ``failed``: why the table stands still while others go on, and ``mark``: where it stands then;
    ``attempts`` are marks up to which it was tried to apply it since. ``as_text``: somebody chose that its
    columns whose types do not fit are text (`waltap_spark.resume_requests`). ``damaged``: the
    segment of the
    change log that it stands still for, and ``passed``: those that somebody chose to go on without.

    ``base``, ``pending`` and ``changes`` are Parquet's own, ``held`` that of formats written in place.
    ``kept_as`` is how the table is kept, None as `PLAIN`. ``snapshot_epoch``: the epoch of the change
    log in which a snapshot replaced its rows last. ``handed_rows``: rows that tasks read of the source,
    for the last snapshot that came so, and ``handed_nulls``: which of their values are null here since a
    column cannot hold them. ``place``: its part in a target of several tables.
    """

    schema: str
    table: str
    key: tuple[str, ...] = ()
    columns: dict[str, str] = {}
    versions: dict[str, dict[str, str]] = {}
    base: tuple[BasePart, ...] = ()
    pending: tuple[ChangeSet, ...] = ()
    changes: tuple[ChangeSet, ...] = ()
    staged: tuple[StagedSegment, ...] = ()
    source_columns: tuple[str, ...] = ()
    ids: dict[str, int] = {}
    version_ids: dict[str, dict[str, int]] = {}
    source: dict[str, ColumnEntry] = {}
    streamed: tuple[str, ...] | None = None
    oid: int = 0
    incarnation: int = 0
    former: tuple[int, ...] = ()
    stale: tuple[str, ...] = ()
    failed: str = ""
    mark: LogPosition | None = None
    attempts: tuple[LogPosition, ...] = ()
    held: StoredTable | None = None
    kept_as: TableMode | None = None
    place: TargetMapping | None = None
    as_text: bool = False
    damaged: str = ""
    passed: tuple[str, ...] = ()
    snapshot_epoch: int = 0
    handed_rows: int = 0
    handed_nulls: tuple[str, ...] = ()

    @property
    def mode(self) -> TableMode:
        """Return how the table is kept."""
        return self.kept_as or PLAIN

    @property
    def name(self) -> str:
        """Return ``schema.table``."""
        return f"{self.schema}.{self.table}"

    @property
    def target(self) -> tuple[str, str]:
        """Return schema and name of what holds its rows: its own, or those of the target it is part of."""
        place = self.place
        return (self.schema, self.table) if place is None else (place.schema, place.table)

    @property
    def target_name(self) -> str:
        """Return the target's name, which rules of a profile go by."""
        return ".".join(self.target)

    @property
    def target_folder(self) -> str:
        """Return the target's folder."""
        return f"tables/{'/'.join(map(safe_name, self.target))}"

    @property
    def folder(self) -> str:
        """Return the table's folder."""
        return f"tables/{safe_name(self.schema)}/{safe_name(self.table)}"

    @property
    def hidden(self) -> tuple[str, ...]:
        """Return the columns that the server computes and does not stream: a snapshot brought their
        values, which grow old with the next update; they are not shown as the row's present ones."""
        sent = self.streamed or ()
        return tuple(
            name for name, entry in self.source.items() if entry.generated and name not in sent
        )

    @property
    def told(self) -> dict[str, str]:
        """Return name → type of the columns of which a change tells now: rows have more, dropped ones,
        those left out, and the `hidden`. By these alone it can be told which row a change without a key
        means. All of them, where it is not known what the source has."""
        hidden = self.hidden
        return {
            name: kind
            for name, kind in self.columns.items()
            if name in self.source_columns and name not in hidden
        } or self.columns

    def paths(self) -> set[str]:
        """Return every folder of files that counts."""
        found = {change.path for change in (*self.changes, *self.pending)}
        return found | {part.path for part in self.base}

    @property
    def has_rows(self) -> bool:
        """Tell whether the table may have rows."""
        return bool(self.base or self.pending or self.held is not None)

    @property
    def base_rows(self) -> int:
        """Return the rows of the base."""
        return sum(part.rows for part in self.base)

    @property
    def stored_rows(self) -> int:
        """Return the rows of the base, and of the changes that are pending."""
        return self.base_rows + sum(change.rows for change in self.pending)

    @property
    def open_rows(self) -> int:
        """Return those that a change may change."""
        return sum(part.rows for part in self.base if not part.closed)


Versions = dict[str, dict[str, int]]
"""Table → what → version."""


class VersionMap(msgspec.Struct, frozen=True, kw_only=True):
    """One commit in the past: where it stood, and the versions of the tables that it moved."""

    number: int
    mark: LogPosition
    committed_at: float
    last_commit_ts: int | None
    versions: Versions


class OutputState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything one commit says. ``changelog``: where the log lay, ``log_id``: which one it is, "" where
    an earlier version made the commit. ``identity`` is the output's own, given once; ``format`` is that of
    its tables, ``format_values`` its properties. ``cuts`` are the newest (`waltap_spark.version_maps`),
    ``cuts_before`` the versions before them. ``garbage``: folders no longer named, and since when, as
    earlier versions kept them; now they are in files of their own (`waltap_spark.output`).
    ``reached_by``: for each epoch since that of the table that is farthest behind, the highest LSN of the
    change log's epochs before (`waltap_spark.redelivery`); earlier versions kept that of the present one,
    ``reached``."""

    version: int
    number: int
    mark: LogPosition
    changelog: str
    committed_at: float
    tables: dict[str, TableState] = {}
    garbage: dict[str, float] = {}
    rows_applied: int = 0
    last_commit_ts: int | None = None
    log_id: str = ""
    identity: str = ""
    format: str = "parquet"
    format_values: dict[str, str] = {}
    cuts: tuple[VersionMap, ...] = ()
    cuts_before: Versions = {}
    reached: int = 0
    reached_by: tuple[tuple[int, int], ...] = ()

    def dropped(self, tables: Mapping[str, TableState]) -> set[str]:
        """Return the folders that ``tables``, those of the next commit, name no more."""
        found = set(self.garbage)
        for name, table in tables.items():
            had = self.tables.get(name, table)
            if had is not table:
                found |= had.paths() - table.paths()
        return found


class CommitIntent(msgspec.Struct, frozen=True, kw_only=True):
    """A commit that was begun: its number, and the mark it is to reach. A format that writes in place may
    have written for it, so a driver that finds it goes exactly so far first."""

    number: int
    mark: LogPosition
    identity: str


def applied_by_all(state: OutputState) -> LogPosition:
    """Return the mark up to which every table has applied the change log."""
    return min([state.mark, *(each.mark for each in state.tables.values() if each.mark)])


class SparkOutput:
    """The folders and commits below one location: a path, the URI of a filesystem, or its files."""

    def __init__(self, location: "FileStore | str") -> None:
        self.store = location if isinstance(location, FileStore) else FileStore(location)
        self.location = self.store.location
        self.garbage = OrphanFiles(self.store)
        self._commits = CommitFiles(self.store, OutputState)
        self._number = 0

    # --- reading ----------------------------------------------------------------------------------

    def state(self) -> OutputState | None:
        """Return what the newest commit says, None before the first. Raises: OutputDamaged."""
        return self._commits.newest()

    def kept_states(self) -> list[OutputState]:
        """Return what the commits say that are still there, oldest first. Raises: OutputDamaged."""
        return self._commits.kept()

    def table(self, name: str, state: OutputState | None = None) -> TableState:
        """Return the table called ``schema.table``, or ``table`` where that is clear.

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
        """Return ``path`` as Spark wants it."""
        return address(self.store, path)

    # --- writing ----------------------------------------------------------------------------------

    def open(self, changelog: str, log_id: str = "") -> OutputState:
        """Take hold of the output to write it, and clear what a crash left behind.

        ``changelog``: where the log lies, ``log_id``: which one it is. Tables go by the id, and both may
        have been moved; those of an earlier version, which knew no id, by the place.
        Raises: OutputInUse, OutputMismatch, OutputDamaged.
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
        if state is None:
            begun = self.intent()
            return OutputState(
                version=VERSION,
                number=0,
                mark=NOTHING,
                changelog=changelog,
                committed_at=0.0,
                log_id=log_id,
                identity=begun.identity if begun is not None else _new_identity(),
            )
        known = state.log_id and log_id
        if state.log_id != log_id if known else not same_place(state.changelog, changelog):
            raise OutputMismatch(
                f"{self.location} was made from the change log {state.changelog}, not {changelog}",
                output=self.location,
                changelog=changelog,
            )
        state = msgspec.structs.replace(
            state, version=VERSION, changelog=changelog, log_id=log_id or state.log_id
        )
        self._remove_unnamed(state)
        return state if state.identity else msgspec.structs.replace(state, identity=_new_identity())

    def close(self) -> None:
        """Let others write."""
        self._commits.forget()
        self.store.unlock()

    def sync(self, path: str, size: int = 0) -> None:
        """Have the files that Spark wrote to the folder ``path``, or the one file of ``size`` bytes, made
        durable with the next commit."""
        if path.endswith(FILE):
            self.store.sync(path, size)
            return
        for name in self.store.names(path):
            self.store.sync(f"{path}/{name}")

    def remove(self, path: str) -> None:
        """Remove a set, be it a file or a folder."""
        if path.endswith(FILE):
            self.store.delete(path)
        else:
            self.store.delete_folder(path)

    def remove_vain(self, given: Iterable[str], *tables: TableState) -> None:
        """Remove the sets of ``given`` that none of ``tables`` names, which no commit does either. What
        cannot be removed counts for nothing until the next `open`."""
        named = {path for table in tables for path in table.paths()} if given else set()
        for path in given:
            try:
                if path not in named:
                    self.remove(path)
            except FilesUnavailable as error:
                log.warning("a set that nobody needs stays until the next start: %s", error)

    def intent(self) -> CommitIntent | None:
        """Return the commit that was begun last, None when none was. Raises: OutputDamaged."""
        if INTENT.rpartition("/")[2] not in self.store.names(INTENT.rpartition("/")[0]):
            return None
        try:
            return msgspec.json.decode(self.store.read(INTENT), type=CommitIntent)
        except UNREADABLE as cause:
            text = f"{INTENT} says not which commit was begun: {cause}"
            raise OutputDamaged(text, path=self.uri(INTENT)) from cause

    def begun(self, state: OutputState) -> CommitIntent | None:
        """Return the commit after ``state`` that a driver had begun, None where there is none."""
        intent = self.intent()
        return None if intent is None or intent.number <= state.number else intent

    def intend(self, intent: CommitIntent) -> None:
        """Say, durably, which commit is begun."""
        self.store.publish(INTENT, msgspec.json.encode(intent) + b"\n")

    def commit(self, state: OutputState) -> None:
        """Make ``state`` what counts, atomically; then remove commits that nobody needs."""
        self._commits.write(state)
        self._number = state.number

    def collect(self, grace_s: float) -> int:
        """Remove sets that no commit has named for ``grace_s``; return how many. For who has opened it."""
        removed = 0
        for name, paths in self.garbage.due(grace_s, self._number):
            for path in paths:
                self.remove(path)
            self.store.delete(name)
            removed += len(paths)
        return removed

    def _remove_unnamed(self, state: OutputState) -> None:
        """Remove what no commit names. In an object store the driver of another machine may still be at
        the next commit: its sets stay until a later start."""
        self.garbage.forget_after(state.number)
        named = self.garbage.paths() | set(state.garbage)
        for table in state.tables.values():
            named |= table.paths()
        for schema in self.store.folders("tables"):
            for table_name in self.store.folders(f"tables/{schema}"):
                for kind in ("changes", "current"):
                    folder = f"tables/{schema}/{table_name}/{kind}"
                    for name in [*self.store.folders(folder), *self.store.names(folder)]:
                        if f"{folder}/{name}" not in named and not self._awaits(name, state.number):
                            self.remove(f"{folder}/{name}")

    def _awaits(self, name: str, number: int) -> bool:
        """Tell whether a set may be of a commit after ``number`` that another driver is at."""
        begun = name[:12]
        return not self.store.local and begun.isdigit() and int(begun) > number


def _new_identity() -> str:
    return uuid.uuid4().hex
