"""Snapshot modes: when a start reads tables, which of them, and how. The contract of a mode."""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waltap.decode.relation import Relation
    from waltap.offsets.offset import Offset
    from waltap.source.slot_status import SlotStatus

__all__ = ["ISOLATIONS", "SnapshotFacts", "SnapshotStart", "Snapshotter"]

ISOLATIONS = ("serializable", "repeatable_read", "read_committed", "read_uncommitted")
"""What `Snapshotter.isolation` may answer: the words of ``snapshot.isolation.mode``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """What a start knows: is there a stored offset, was a snapshot left incomplete, and can the
    server still stream from the stored position. ``reconnects``: this is no start, but a link that
    broke in mid-run and came back."""

    offset: bool
    snapshot_incomplete: bool
    position_available: bool
    reconnects: bool = False


def _nothing(_sql: str, _parameters: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStart:
    """What is at hand when a mode is asked how tables are read.

    ``known`` is what it decided by. ``offset`` is the stored one, ``slot`` the pipeline's slot, both as
    they were before this start; None where there was none. ``exported``: rows are read in the snapshot
    that a new slot exports. ``resumes``: a snapshot that broke off goes on. ``query`` asks the source, as
    it is now (SQL, and a tuple of values for each ``%s``; raises SourceError); it should be quick.
    """

    known: SnapshotFacts
    offset: "Offset | None" = None
    slot: "SlotStatus | None" = None
    exported: bool = False
    resumes: bool = False
    query: Callable[..., list[tuple[object, ...]]] = field(
        default=_nothing, compare=False, repr=False
    )


class Snapshotter(abc.ABC):  # noqa: B024 - every answer has a default, and nobody wants all of them
    """One ``snapshot.mode``. What it leaves out is as in the mode ``initial``.

    Asked in the engine's thread, in this order:

    1. `takes_snapshot`, `streams`, `resumes`, `recovers_lost_position`: before anything is made, also by
       ``waltap doctor``. The answers depend on `SnapshotFacts` alone.
    2. For each captured table `reads`, for those that are read `lock`, and `isolation`: before the slot is
       made. `reads` is asked again when the snapshot has begun, for tables that came meanwhile.
    3. `before`, and for each table that is read `query`: in the snapshot, before the first row.
    4. `after`: when the snapshot has ended, or has not.

    A link that broke and came back begins at 1 too. `query`, `lock` and `isolation` are asked for blocking
    snapshots as well, whose tables a signal names. Another mode answers in the place of this one: `query`
    with ``snapshot.query.mode=custom``, `lock` with ``snapshot.locking.mode=custom``. What is raised ends
    the start: a SnapshotError as it is, anything else as a fault of the plugin.
    """

    def takes_snapshot(self, known: SnapshotFacts) -> bool:
        """Tell whether rows are read before streaming. Raises: SnapshotError when the mode forbids
        this start."""
        return not known.offset or known.snapshot_incomplete

    def streams(self, known: SnapshotFacts) -> bool:
        """Tell whether streaming follows."""
        return True

    def resumes(self, known: SnapshotFacts) -> bool:
        """Tell whether a snapshot that was left incomplete may go on, rather than be taken anew. Asked
        when this start takes one and both could be done."""
        return True

    def recovers_lost_position(self) -> bool:
        """Tell whether a lost position is answered by a new snapshot rather than an error."""
        return False

    def reads(self, relation: "Relation", start: SnapshotStart) -> bool:
        """Tell whether the rows of a table are read. Its changes are streamed all the same. The same
        start, the same answer."""
        return True

    def query(self, relation: "Relation", start: SnapshotStart) -> str | None:
        """Return the SELECT that gives the rows of a table, None: all of them. Columns are told by their
        names; those it does not give are NULL. ``snapshot.select.statement.overrides`` of the profile
        comes before it."""
        return None

    def lock(self, relation: "Relation", start: SnapshotStart) -> str | None:
        """Return the statement that locks a table from before there is a snapshot until it has been read,
        None: as ``snapshot.locking.mode`` says. It runs in the transaction that reads, which is read-only,
        and waits for ``snapshot.lock.timeout.ms``. A lock that other readers wait for is refused."""
        return None

    def isolation(self, start: SnapshotStart) -> str | None:
        """Return one of `ISOLATIONS` for the transaction that reads all tables, None: as
        ``snapshot.isolation.mode`` says. Not asked where the snapshot is an exported one."""
        return None

    def before(self, relations: "Sequence[Relation]", start: SnapshotStart) -> None:
        """The initial snapshot begins, and ``relations`` are what is read, in this order. Raises:
        SnapshotError, to end the start instead."""

    def after(self, start: SnapshotStart, *, completed: bool) -> None:
        """The initial snapshot is over. ``completed``: every row is durable, and the offset says so. Else
        it was interrupted, and the next start decides anew. What this raises is logged, and changes
        nothing."""
