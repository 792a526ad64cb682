"""Plan how manifests are applied to each table.

The plan is groups of segments, in order. This module does not import Spark.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from waltap.errors import WaltapError
from waltap_sinks.changelog.manifest import ColumnEntry, LogPosition, Manifest, Segment, TableEntry
from waltap_spark.planning.table_renames import Name, entry_id, joined
from waltap_spark.state.modes import unfit
from waltap_spark.state.output import BasePart, ChangeSet, EntryId, StagedSegment, TableState

MISSED = "it was not captured for a while, and rows may have gone or got another key meanwhile"

COLUMNLESS: Final = "none of its columns is in the change log, so its rows are missing"


@dataclass(slots=True)
class SegmentGroup:
    """Segments of one table applied together: one schema, one epoch."""

    fingerprint: str
    epoch: int
    key: tuple[str, ...]
    columns: tuple[ColumnEntry, ...]
    # The source's number of the table, 0 when unknown.
    oid: int
    # The table's name in the change log.
    name: str = ""
    # Whether the segments are a whole snapshot, which replaces the table's rows.
    replaces: bool = False
    # Whether rows are as the server streams them, not as a snapshot reads them.
    streamed: bool = False
    # Path → the manifest's entry of the segment; 0 bytes when unknown.
    segments: dict[str, Segment] = field(default_factory=dict)
    rows: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    unchanged: dict[str, None] = field(default_factory=dict)
    key_changes: int = 0
    key_reused: bool = False
    # Paths of the rows in a form that Spark can read, when the segments' form is not.
    converted: list[str] = field(default_factory=list)
    # The end of the commit that the group was planned for.
    until: LogPosition | None = None
    # LSN and time (µs since 1970) of the snapshot, when known.
    at: tuple[int, int | None] | None = None
    # Later groups of the same snapshot, for a group that replaces.
    others: tuple["SegmentGroup", ...] = ()
    # Name of an external snapshot, whose rows are in no segment (`TableEntry.external_snapshot`).
    external_snapshot: str = ""
    # Whether the external rows are lost, or none of them fits the table.
    lost: bool = False
    # Why the rows may differ from the source's afterwards (`TableState.stale`).
    snapshot_reason: str = ""
    # LSNs between which the transactions end, from 0 at an epoch's start. None for a snapshot.
    span: tuple[int, int] | None = None

    # `TableEntry.continuity_id` of all rows.
    continuity_id: str = ""

    # Column names in the segments → in the tables, where they differ.
    # Everything else in the group uses the tables' names (`waltap_spark.config.column_names`).
    called: dict[str, str] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Return the bytes of the segments, 0 when unknown."""
        return sum(part.bytes for part in self.segments.values())

    @property
    def unpacked(self) -> int:
        """Return the bytes of the segments' values, 0 when unknown."""
        return unpacked_in_all(self.segments.values())

    def add(self, entry: TableEntry, span: tuple[int, int]) -> None:
        """Add the segments of a manifest's ``entry`` with LSNs ``span``."""
        self.span = span if self.span is None else (self.span[0], span[1])
        self.continuity_id = self.continuity_id if self.continuity_id == entry.continuity_id else ""
        self.segments |= {part.path: part for part in entry.segments}
        self.rows += entry.rows
        self.operations.update(entry.operations)
        self.unchanged.update(dict.fromkeys(entry.unchanged))
        self.key_changes += entry.key_changes
        # Rows of an incremental snapshot are read, so they have columns that the stream may lack.
        self.streamed |= not {"r"} >= set(entry.operations)
        self.key_reused |= entry.key_reused

    def count(self, rows: int) -> None:
        """Record the number of rows of an external snapshot."""
        self.rows = rows
        self.operations = Counter(r=rows) if rows else Counter()

    def leave_out(self, paths: set[str]) -> None:
        """Leave the segments ``paths`` out.

        Counts of operations still include their rows.
        """
        for path in paths.intersection(self.segments):
            self.rows -= self.segments.pop(path).rows

    def continues(self, entry: TableEntry, epoch: int) -> bool:
        """Return whether rows of ``entry`` may join this group."""
        return (
            not self.replaces
            and self.fingerprint == entry.fingerprint
            and self.epoch == epoch
            and self.key == entry.key
            # rows under two names of a renamed table may alternate within a manifest
            and (self.continuity_id == entry.continuity_id or self.name != entry.name)
        )


# Rows of the change log with facts about them: rows to apply, or a Parquet table's stored changes.
LogFacts: TypeAlias = SegmentGroup | ChangeSet


def unpacked_in_all(parts: Iterable[LogFacts | Segment]) -> int:
    """Return the bytes of all values, 0 when some are unknown."""
    each = tuple(part.unpacked for part in parts if part.rows)
    return sum(each) if all(each) else 0


def unsent_columns(table: TableState, changes: Iterable[LogFacts]) -> list[str]:
    """Return the columns that some change did not send."""
    names = dict.fromkeys(name for change in changes for name in change.unchanged)
    return [name for name in names if name not in table.key]


def shared_continuity_id(parts: Iterable[LogFacts | BasePart | StagedSegment]) -> str:
    """Return the one continuity id of all ``parts``, otherwise ""."""
    found = {part.continuity_id for part in parts}
    return found.pop() if len(found) == 1 else ""


@dataclass(slots=True)
class TableTask:
    """A table's groups in order, and its waiting snapshot parts."""

    schema: str
    table: str
    groups: list[SegmentGroup] = field(default_factory=list)
    staged: list[StagedSegment] = field(default_factory=list)
    # Groups that the applier has begun.
    tried: list[SegmentGroup] = field(default_factory=list)
    # What identifies its entries, in order.
    entries: tuple[EntryId, ...] = ()
    # Why its groups cannot be read from the log.
    unreadable: WaltapError | None = None

    @property
    def rows(self) -> int | None:
        """Return the number of rows, None if unknown."""
        if any(group.external_snapshot for group in self.groups):
            return None
        return sum(group.rows for group in self.groups)

    @property
    def oid(self) -> int:
        """Return the table's number in the source, 0 if unknown."""
        return next((oid for _epoch, _name, oid in reversed(self.entries) if oid), 0)

    @property
    def former_names(self) -> tuple[str, ...]:
        """Return the names that a new table left in its first commit."""
        names = dict.fromkeys(name for _epoch, name, _oid in self.entries)
        return tuple(name for name in names if name != f"{self.schema}.{self.table}")

    def ends(self, had: Iterable[LogPosition], *, every: bool) -> tuple[LogPosition, ...]:
        """Return the ends of all groups that were begun.

        ``had`` are the ends of earlier attempts: this attempt may have failed before it reached
        another's writes. ``every`` adds groups that were not begun now, since another driver
        may have begun them in the same commit.
        """
        groups = self.groups if every else self.tried
        return tuple(sorted({*had, *(each.until for each in groups if each.until is not None)}))

    def take(
        self, entry: TableEntry, epoch: int, span: tuple[int, int], at: tuple[int, int | None]
    ) -> None:
        """Add the rows that one manifest has of this table.

        ``span`` are the manifest's LSNs, ``at`` is the position of the rows' snapshot.
        """
        self.entries = joined(self.entries, [entry_id(epoch, entry)])
        # An external snapshot replaces everything, also staged parts of an earlier one.
        if entry.external_snapshot:
            self.staged = []
            group = _group(entry, epoch)
            group.replaces, group.external_snapshot = True, entry.external_snapshot
            group.segments = {part.path: part for part in entry.segments}
            self.groups.append(group)
            return
        if entry.snapshot_id is not None:
            self._stage(entry)
            if entry.complete:
                self.release(entry.snapshot_id, epoch, at, entry)
            return
        if not self.groups or not self.groups[-1].continues(entry, epoch):
            self.groups.append(_group(entry, epoch))
        self.groups[-1].add(entry, span)

    def _stage(self, entry: TableEntry) -> None:
        """Keep rows of a snapshot until it is complete.

        Rows of an earlier snapshot are discarded, and earlier rows of a table that restarts.
        """
        assert entry.snapshot_id is not None
        own = [part for part in self.staged if part.snapshot_id == entry.snapshot_id]
        self.staged = [] if entry.restarts else own
        self.staged += [
            StagedSegment(
                snapshot_id=entry.snapshot_id,
                path=part.path,
                fingerprint=entry.fingerprint,
                rows=part.rows,
                bytes=part.bytes,
                unpacked=part.unpacked,
                key=entry.key,
                columns=entry.columns,
                oid=entry.oid,
                continuity_id=entry.continuity_id,
            )
            for part in entry.segments
        ]

    def release(
        self,
        snapshot_id: int,
        epoch: int,
        at: tuple[int, int | None],
        entry: TableEntry | None = None,
    ) -> None:
        """Turn a snapshot into groups; the first replaces the table."""
        parts = [part for part in self.staged if part.snapshot_id == snapshot_id]
        # An empty table has no parts, but its complete snapshot removes earlier rows all the same.
        groups = [] if parts or entry is None else [_group(entry, epoch)]
        for part in parts:
            if not groups or groups[-1].fingerprint != part.fingerprint:
                groups.append(
                    SegmentGroup(part.fingerprint, epoch, part.key, part.columns, oid=part.oid)
                )
            groups[-1].segments[part.path] = Segment(
                path=part.path, rows=part.rows, bytes=part.bytes, unpacked=part.unpacked
            )
            groups[-1].rows += part.rows
            groups[-1].operations["r"] += part.rows
        if groups:
            groups[0].replaces, groups[0].at = True, at
            groups[0].others = tuple(groups[1:])
            for group in groups:
                group.continuity_id = shared_continuity_id(parts or [groups[0]])
            self.groups += groups
        self.staged = []


def plan(
    manifests: Iterable[Manifest],
    tables: Mapping[str, TableState],
    routes: Mapping[EntryId, Name] | None = None,
) -> dict[str, TableTask]:
    """Return a task for every table that ``manifests`` touch.

    ``tables`` are the tables before, with the parts of unfinished snapshots. ``routes`` have the
    entries that count, and their tables (`TableRenames.routes`). Without them each entry counts
    for the table of its name.
    """
    plans = {
        name: TableTask(before.schema, before.table, staged=list(before.staged))
        for name, before in tables.items()
        if before.staged
    }
    commit_ts: int | None = None
    for manifest in manifests:
        epoch, before, part = manifest.log_position.epoch, manifest.previous, manifest.snapshot
        commit_ts = commit_ts if manifest.last_commit_ts is None else manifest.last_commit_ts
        at = manifest.log_position.end_lsn, commit_ts
        if part is not None:
            at = at[0] if part.lsn is None else part.lsn, part.ts or commit_ts
        # LSNs of two epochs do not compare, so the first span of an epoch starts at 0.
        span = (before.end_lsn if before.epoch == epoch else 0, manifest.log_position.end_lsn)
        for entry in manifest.tables:
            own = entry.schema, entry.table
            route = own if routes is None else routes.get(entry_id(epoch, entry))
            if route is None:
                continue
            name = ".".join(route)
            found = plans.setdefault(name, TableTask(*route))
            had = name in tables or bool(found.groups)
            found.take(entry, epoch, span, at)
            # A table that is new here lacks no delete, whatever happened before.
            if entry.missed and had:
                found.groups[-1].snapshot_reason = MISSED
        if part is not None and part.complete:
            for found in plans.values():
                found.release(part.snapshot_id, epoch, at)
    return plans


def only_adds(table: TableState, group: SegmentGroup) -> bool:
    """Return whether all rows are inserts of new keys.

    Without a continuity id a delete may be missing, so that a key is inserted twice.
    """
    return set(group.operations) == {"c"} and bool(group.continuity_id or not table.key)


def meets_none(table: TableState, group: SegmentGroup) -> bool:
    """Return whether ``group`` has no key of a stored row.

    All stored rows must be of its epoch and, with a key, of its gap-free run.
    """
    stored = table.stored_table
    if not stored.targets or not only_adds(table, group) or not table.mode.adds_alone:
        return False
    unbroken = stored.continuity_id == group.continuity_id or not (stored.epoch and table.key)
    return stored.epoch in (0, group.epoch) and unbroken


def another_table(table: TableState, group: SegmentGroup) -> bool:
    """Return whether another table took the name."""
    return bool(table.oid and group.oid and table.oid != group.oid)


def doubles(table: TableState, group: SegmentGroup) -> str:
    """Return why ``group`` may duplicate rows, "" when it cannot.

    Rows that are read again while changes stream find their earlier copies only by a key.
    """
    again = group.operations["r"] and not group.replaces and group.span is not None
    stored = table.stored_rows or table.stored_table.epoch
    there = (stored and not another_table(table, group)) or set(group.operations) > {"r"}
    if not again or not there or group.key or table.mode.name == "append":
        return ""
    return "it has no key, and rows of it were read while it had some: they may be there twice"


def _group(entry: TableEntry, epoch: int) -> SegmentGroup:
    return SegmentGroup(
        fingerprint=entry.fingerprint,
        epoch=epoch,
        key=entry.key,
        columns=entry.columns,
        oid=entry.oid,
        name=entry.name,
        continuity_id=entry.continuity_id,
    )


# Some modes need a key (`waltap_spark.state.modes.unfit`), so a table without one is suspended. When the
# source adds a key and the log has rows with it, the older rows are applied by that key.
#
# With inserts alone before the key this is exact. The server would have refused the key if two rows had
# the same values. Deletes and updates may have met rows with equal key values, and rows may lack the
# key's columns. Both cases mark the table for a new snapshot.


# Operations that leave no second row with the same key: create, read and truncate.
ADDS: Final = frozenset("crt")


def apply_added_key(table: TableState, groups: Sequence[SegmentGroup]) -> None:
    """Apply a later key of ``table`` to earlier groups without one.

    Groups whose mode works without a key stay as they are. A group without the key's columns adds
    no rows (`SegmentGroup.lost`).
    """
    key = table.key
    for group in groups:
        if not (group.key or group.oid) and set(group.operations) == {"t"}:
            group.key = key  # the event of a truncate has none
        key = group.key
    later: SegmentGroup | None = None
    for group in reversed(groups):
        if group.key:
            later = group
        elif later is not None and unfit(table.mode, (), ()) and not group.lost:
            _take(group, later)


def _take(group: SegmentGroup, later: SegmentGroup) -> None:
    """Apply the key of ``later`` to ``group``.

    The result depends on these two groups alone. An earlier attempt may have written it already,
    and a retry must write the same rows.
    """
    if group.oid and later.oid and group.oid != later.oid:
        group.lost, group.rows = True, 0  # the source dropped that table
        return
    key = _called(group, later)
    if key is None:
        group.lost, group.rows = True, 0
        names = ", ".join(later.key)
        group.snapshot_reason = (
            f"rows from before it had its key ({names}) lack that, and were left out"
        )
        return
    group.key = key
    if not ADDS.issuperset(group.operations):
        # an update or delete before the key may have met several rows with equal key values
        group.key_reused = True
        group.snapshot_reason = (
            "rows were changed before it had its key, by which they were identified afterwards"
        )


def _called(group: SegmentGroup, later: SegmentGroup) -> tuple[str, ...] | None:
    """Return the names in ``group`` for the key columns of ``later``.

    None means that the group lacks one of them.
    """
    numbers = {column.name: column.number for column in later.columns}
    by_number = {column.number: column.name for column in group.columns}
    names = {column.name: column.number for column in group.columns}
    found = []
    for name in later.key:
        number = numbers.get(name)
        if number is not None and number in by_number:
            found.append(by_number[number])
        # without a column number on both sides, the name decides
        elif name in names and None in {number, names[name]}:
            found.append(name)
        else:
            return None
    return tuple(found)
