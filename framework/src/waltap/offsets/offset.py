"""Offsets: the stored position of a pipeline, and the contract of the stores that keep it."""

import abc

import msgspec

from waltap.decode_errors import UNREADABLE
from waltap.snapshot.progress import SnapshotProgress
from waltap.source.position import SOLE, Position, Positions
from waltap.transactions.order import TransactionCounts

__all__ = [
    "NEWEST_VERSION",
    "Offset",
    "OffsetStore",
    "PartitionOffset",
    "SnapshotProgress",
    "decoded",
    "encoded",
]

NEWEST_VERSION = 2
"""Of the stored form. A store keeps what `encoded` gives and loads it by `decoded`, so that it reads
every earlier one."""


class PartitionOffset(msgspec.Struct, frozen=True, kw_only=True):
    """What a pipeline remembers of one partition of its source: of one slot.

    ``system_id``, ``timeline``, ``slot``, ``database`` tie the position to one server history: a
    position of another one means nothing. ``slot_created_lsn`` is where a slot that waltap made began,
    0 for a slot that was there before. ``previous_end_lsn`` is the end of the last transaction that
    was delivered (the position also moves without one), for ``source.sequence`` after a restart.
    ``visible_in`` is set when a snapshot read tables whose changes the stream brings, too, beside a slot
    that existed already or later than the slot began, by OID and by schema.table:
    ``xmin:xmax:xip,…@HORIZON`` names the transactions whose changes the rows contain and the stream, up to
    the LSN HORIZON, must leave out. ``visible`` is what earlier versions kept of all tables in one.
    ``counted``: where ``position`` is within a
    transaction, how many events its changes became so far, if events are counted; else it is not set, and
    not stored. ``slot_identity`` is what the server calls the slot besides its name, where a slot that
    was made anew is called otherwise. ``as_of_ms``: what had committed before, in ms since 1970 UTC,
    is delivered. ``held`` is the position that the sink kept with its data then (`Sink.held`).
    """

    position: Position
    slot: str
    database: str
    system_id: str
    timeline: int
    decoder: str = ""
    slot_created_lsn: int = 0
    previous_end_lsn: int | None = None
    visible: str = ""
    visible_in: dict[str, str] = {}
    counted: TransactionCounts | msgspec.UnsetType = msgspec.UNSET
    slot_identity: str | msgspec.UnsetType = msgspec.UNSET
    as_of_ms: int | msgspec.UnsetType = msgspec.UNSET
    held: Position | msgspec.UnsetType = msgspec.UNSET


class Offset(msgspec.Struct, frozen=True, kw_only=True):
    """What a pipeline remembers between runs: each partition's offset by its name, a snapshot that has
    not ended, ``signals``, the state of incremental snapshots (`waltap.snapshot.incremental_state`), and
    ``sink``, where it was delivered last (`Stages.destination`), "" where that is not known, and
    ``sink_identity``, what is there (`Sink.identity`).

    A source with one partition is the normal case: `of` makes its offset, `sole` is the partition,
    `with_sole` changes it.
    """

    partitions: dict[str, PartitionOffset]
    snapshot: SnapshotProgress | None = None
    signals: dict[str, object] = {}
    sink: str = ""
    sink_identity: str | msgspec.UnsetType = msgspec.UNSET
    version: int = NEWEST_VERSION

    @classmethod
    def of(cls, sole: PartitionOffset, *, snapshot: SnapshotProgress | None = None) -> "Offset":
        """Return the offset of a source with one partition."""
        return cls(partitions={SOLE: sole}, snapshot=snapshot)

    @property
    def sole(self) -> PartitionOffset:
        """Return the only partition's. Raises: ValueError when there are others."""
        (partition,) = self.partitions.values()
        return partition

    @property
    def first(self) -> PartitionOffset:
        """Return the first partition's: it speaks for the server and the database that all are of."""
        return next(iter(self.partitions.values()))

    @property
    def positions(self) -> Positions:
        """Return the position in each partition."""
        return Positions({name: each.position for name, each in self.partitions.items()})

    @property
    def held(self) -> Positions:
        """Return the position that the sink kept with its data in each partition, where it did."""
        found = {name: each.held for name, each in self.partitions.items()}
        return Positions({n: p for n, p in found.items() if isinstance(p, Position)})

    def with_sole(self, **changes: object) -> "Offset":
        """Return the offset with other values of the only partition, by the names of its fields."""
        changed = msgspec.structs.replace(self.sole, **changes)
        return msgspec.structs.replace(self, partitions=dict.fromkeys(self.partitions, changed))


def encoded(offset: Offset) -> bytes:
    """Return the stored form: JSON."""
    return msgspec.json.encode(offset)


def decoded(data: bytes) -> Offset:
    """Return the offset that `encoded` stored, in this version or an earlier one.

    Version 1 (until 0.1) knew one partition, whose fields stood beside the rest.
    Raises: ValueError when it is none, or of a later version.
    """
    try:
        version = msgspec.json.decode(data, type=_OffsetVersion).version
        if version > NEWEST_VERSION:
            message = f"it has version {version}; this waltap knows {NEWEST_VERSION}"
            raise ValueError(message)
        if version == 1:
            found = msgspec.json.decode(data, type=_Version1)
            sole = msgspec.convert(msgspec.to_builtins(found), PartitionOffset)
            return Offset(partitions={SOLE: sole}, snapshot=found.snapshot, signals=found.signals)
        return msgspec.json.decode(data, type=Offset)
    except UNREADABLE as error:
        raise ValueError(str(error)) from error


class _OffsetVersion(msgspec.Struct):
    version: int = 1


class _Version1(PartitionOffset, frozen=True, kw_only=True):
    """The stored form until partitions had names."""

    snapshot: SnapshotProgress | None = None
    signals: dict[str, object] = {}


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
