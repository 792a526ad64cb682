"""Offsets: the stored position of a pipeline, and the contract of the stores that keep it."""

import abc

import msgspec

from waltap.source.position import Position

__all__ = ["Offset", "OffsetStore", "SnapshotProgress"]


class SnapshotProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot that has begun and not ended; a start that finds it takes the snapshot anew."""

    kind: str
    lsn: int


class Offset(msgspec.Struct, frozen=True, kw_only=True):
    """What a pipeline remembers between runs.

    ``system_id``, ``timeline``, ``slot``, ``database`` tie the position to one server history: a
    position of another one means nothing. ``slot_created_lsn`` is where a slot that waltap made began,
    0 for a slot that was there before. ``previous_end_lsn`` is the end of the last transaction that
    was delivered (the position also moves without one), for ``source.sequence`` after a restart.
    ``visible`` is set when a snapshot was read beside a slot that existed already:
    ``xmin:xmax:xip,…@HORIZON`` names the transactions that the snapshot contains and the stream,
    up to the LSN HORIZON, must leave out; ``visible_in`` says the same of single tables, by OID and by
    schema.table, that were read later than the rest. ``signals`` holds state of incremental snapshots.
    """

    position: Position
    slot: str
    database: str
    system_id: str
    timeline: int
    decoder: str = ""
    slot_created_lsn: int = 0
    snapshot: SnapshotProgress | None = None
    previous_end_lsn: int | None = None
    visible: str = ""
    visible_in: dict[str, str] = {}
    signals: dict[str, object] = {}
    version: int = 1


class OffsetStore(abc.ABC):
    """Keeps one offset per pipeline. ``store`` returns only when the offset is durable."""

    @abc.abstractmethod
    def load(self) -> Offset | None:
        """Return the stored offset, None when there is none. Raises: OffsetError."""

    @abc.abstractmethod
    def store(self, offset: Offset) -> None:
        """Replace the stored offset, atomically and durably. Raises: OffsetError."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Forget the stored offset. Raises: OffsetError."""
