"""The contract of snapshot modes.

A mode decides when a start reads tables, which tables, and how.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waltap.changes.decode.relation import Relation
    from waltap.ports.offsets.offset import Offset
    from waltap.ports.source.slot_status import SlotStatus


# The words of ``snapshot.isolation.mode``; results of `Snapshotter.isolation`.
ISOLATIONS = ("serializable", "repeatable_read", "read_committed", "read_uncommitted")


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFacts:
    """Hold the facts that a mode decides by."""

    # Whether there is a stored offset.
    offset: bool
    # Whether a snapshot was interrupted.
    snapshot_incomplete: bool
    # Whether the server can still stream from the stored position.
    position_available: bool
    # Whether this is a reconnection during a run, and not a start.
    reconnects: bool = False


def _nothing(_sql: str, _parameters: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotStart:
    """Hold the context of a mode's decisions about tables."""

    # The facts of its first decisions.
    known: SnapshotFacts
    # Stored offset and slot before this start, None if missing.
    offset: "Offset | None" = None
    slot: "SlotStatus | None" = None
    # Whether rows are read in the snapshot that a new slot exports.
    exported: bool = False
    # Whether an interrupted snapshot resumes.
    resumes: bool = False
    # Queries the present source: SQL, and a tuple of values for each ``%s``. It should be quick. Raises:
    # SourceError.
    query: Callable[..., list[tuple[object, ...]]] = field(
        default=_nothing, compare=False, repr=False
    )


class Snapshotter(abc.ABC):  # noqa: B024 - every answer has a default, and nobody wants all of them
    """Define one ``snapshot.mode``; the defaults describe ``initial``.

    The engine calls the methods in its thread, in this order:

    1. `takes_snapshot`, `streams`, `resumes`, `recovers_lost_position`: before any object is created, also
       by ``waltap doctor``. The results depend only on `SnapshotFacts`.
    2. `reads` for each captured table, `lock` for each table to read, and `isolation`: before the slot is
       created. `reads` is called again after the begin of the snapshot, for new tables.
    3. `before`, and `query` for each table to read: in the snapshot, before the first row.
    4. `after`: when the snapshot has ended or was interrupted.

    A reconnection begins at 1, too. Blocking snapshots also call `query`, `lock` and `isolation`. Another
    mode replaces `query` with ``snapshot.query.mode=custom``, and `lock` with
    ``snapshot.locking.mode=custom``. An exception ends the start: a SnapshotError is reported as it is,
    and any other one as a fault of the plugin.
    """

    def takes_snapshot(self, known: SnapshotFacts) -> bool:
        """Return whether rows are read before streaming.

        Raises: SnapshotError if the mode forbids this start.
        """
        return not known.offset or known.snapshot_incomplete

    def streams(self, known: SnapshotFacts) -> bool:
        """Return whether streaming follows."""
        return True

    def resumes(self, known: SnapshotFacts) -> bool:
        """Return whether an interrupted snapshot may resume.

        Otherwise it is taken again. Called if this start takes a snapshot and both are possible.
        """
        return True

    def recovers_lost_position(self) -> bool:
        """Return whether a lost position causes a new snapshot.

        Otherwise it is an error.
        """
        return False

    def reads(self, relation: "Relation", start: SnapshotStart) -> bool:
        """Return whether the rows of a table are read.

        Its changes stream in either case. The result must not change within a start.
        """
        return True

    def query(self, relation: "Relation", start: SnapshotStart) -> str | None:
        """Return the SELECT for the rows of a table, None for all rows.

        Columns are found by name, and missing columns are NULL. The property
        ``snapshot.select.statement.overrides`` wins over it.
        """
        return None

    def lock(self, relation: "Relation", start: SnapshotStart) -> str | None:
        """Return the statement that locks a table, None for the property.

        The property is ``snapshot.locking.mode``. The lock lasts from before the snapshot until the table
        has been read. The statement runs in the read-only transaction that reads, and waits for
        ``snapshot.lock.timeout.ms``. A lock that blocks other readers is refused.
        """
        return None

    def isolation(self, start: SnapshotStart) -> str | None:
        """Return one of `ISOLATIONS` for reading, None for the property.

        The property is ``snapshot.isolation.mode``. Not called for an exported snapshot.
        """
        return None

    def before(self, relations: "Sequence[Relation]", start: SnapshotStart) -> None:
        """Prepare for the initial snapshot of ``relations``, in this order.

        Raises: SnapshotError, to end the start instead.
        """

    def after(self, start: SnapshotStart, *, completed: bool) -> None:
        """Finish after the initial snapshot.

        ``completed`` means that every row is durable and the offset has this. Otherwise the snapshot was
        interrupted, and the next start decides again. An exception is logged and otherwise ignored.
        """
