"""Define offsets and the contract of offset stores."""

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Protocol

import msgspec

from waltap.base.files.durable_file import UNREADABLE, StateDocument
from waltap.changes.transactions.order import TransactionCounts
from waltap.changes.transactions.position import SOLE, Position, Positions, SnapshotProgress
from waltap.errors import OffsetError
from waltap.ports.snapshot.incremental_state import IncrementalState

NothingStored = OffsetError.define("NothingStored", "WT-6003")

NEWEST_VERSION = 2
"""Version of the stored form, which `encoded` writes and `decoded` reads."""


class PartitionOffset(msgspec.Struct, frozen=True, kw_only=True):
    """The stored position in one partition of the source: in one slot.

    ``system_id``, ``timeline``, ``slot`` and ``database`` identify the server history of the position. The
    position is meaningless in another history.
    """

    position: Position
    slot: str
    database: str
    system_id: str
    timeline: int
    decoder: str = ""
    # Where a slot that waltap created begins; 0 for an existing slot.
    slot_created_lsn: int = 0
    # End of the last delivered transaction, for ``source.sequence`` after a restart. The
    # position also moves without one.
    previous_end_lsn: int | None = None
    # By OID and by schema.table: ``xmin:xmax:xip,…@HORIZON`` of the snapshot that read the
    # table. Up to the LSN HORIZON the stream must skip the changes of transactions that the
    # snapshot saw. Set if a snapshot ran beside an existing slot or after the slot began.
    visible_in: dict[str, str] = {}
    # Number of events so far of the transaction at ``position``, if events are counted.
    counted: TransactionCounts | msgspec.UnsetType = msgspec.UNSET
    # The server's own identity of the slot, where a recreated slot gets another one.
    slot_identity: str | msgspec.UnsetType = msgspec.UNSET
    # A restart LSN of the slot that the server had on its disk. A server with a lower one began
    # from an older copy. UNSET: the source does not show such a server by it.
    slot_restart_lsn: int | msgspec.UnsetType = msgspec.UNSET
    # Everything that committed before this time is delivered; ms since 1970 UTC.
    as_of_ms: int | msgspec.UnsetType = msgspec.UNSET
    # The position that the sink kept with its data (`PositionKeepingSink.stored_position`).
    sink_position: Position | msgspec.UnsetType = msgspec.field(name="held", default=msgspec.UNSET)


class Offset(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline's state between two runs.

    Most sources have one partition: `of` makes its offset, `sole` is the partition, `with_sole` changes
    it.
    """

    # Each partition's offset, by its name.
    partitions: Annotated[dict[str, PartitionOffset], msgspec.Meta(min_length=1)]
    # An initial snapshot that has begun and not ended.
    snapshot: SnapshotProgress | None = None
    # State of incremental snapshots (`waltap.ports.snapshot.incremental_state`).
    signals: dict[str, object] = {}
    # Where the changes were delivered last (`PipelineStages.destination`); "" if unknown.
    sink: str = ""
    # The identity of the data there (`IdentifiedSink.identity`).
    sink_identity: str | msgspec.UnsetType = msgspec.UNSET
    version: int = NEWEST_VERSION

    @classmethod
    def of(cls, sole: PartitionOffset, *, snapshot: SnapshotProgress | None = None) -> "Offset":
        return cls(partitions={SOLE: sole}, snapshot=snapshot)

    @property
    def sole(self) -> PartitionOffset:
        """Return the only partition. Raises: ValueError if there are others."""
        (partition,) = self.partitions.values()
        return partition

    @property
    def first(self) -> PartitionOffset:
        """Return the first partition.

        Every partition has the same server and database, so the first one names both.
        """
        return next(iter(self.partitions.values()))

    @property
    def positions(self) -> Positions:
        return Positions({name: each.position for name, each in self.partitions.items()})

    @property
    def sink_positions(self) -> Positions:
        """Return the position that the sink kept with its data, by partition."""
        found = {name: each.sink_position for name, each in self.partitions.items()}
        return Positions({n: p for n, p in found.items() if isinstance(p, Position)})

    def with_sole(self, **changes: object) -> "Offset":
        """Return the offset with changed fields of its only partition."""
        changed = msgspec.structs.replace(self.sole, **changes)
        return msgspec.structs.replace(self, partitions=dict.fromkeys(self.partitions, changed))


def encoded(offset: Offset) -> bytes:
    """Return the stored form: JSON."""
    return msgspec.json.encode(offset)


def decoded(data: bytes) -> Offset:
    """Return the offset that `encoded` stored.

    Raises: ValueError when it is none, or of another version.
    """
    try:
        version = msgspec.json.decode(data, type=_OffsetVersion).version
        if version != NEWEST_VERSION:
            raise ValueError(f"it has version {version}; this waltap knows {NEWEST_VERSION}")
        offset = msgspec.json.decode(data, type=Offset)
        IncrementalState.restored(offset.signals)
    except UNREADABLE as error:
        raise ValueError(str(error)) from error
    return offset


class _OffsetVersion(msgspec.Struct):
    version: int


class OffsetStore(abc.ABC):
    """Stores one offset for each pipeline."""

    @abc.abstractmethod
    def load(self) -> Offset | None:
        """Return the stored offset, None without one. Raises: OffsetError."""

    @abc.abstractmethod
    def store(self, offset: Offset) -> None:
        """Replace the stored offset atomically; return once it is durable.

        Raises: OffsetError.
        """

    @abc.abstractmethod
    def clear(self) -> None:
        """Delete the stored offset. Raises: OffsetError."""


class ConnectOffsets(Protocol):
    """Connector offsets in Kafka Connect's storage, by key."""

    def read(self) -> Mapping[bytes, bytes]:
        """Return every offset without a tombstone. Raises: WaltapError."""

    def write(self, key: bytes, value: bytes) -> None:
        """Store one connector's offset durably. Raises: WaltapError."""


# The offset itself has the position of the slowest sink.
class SinkProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The durable position of one of several sinks, by partition."""

    positions: dict[str, Position]
    # ``counted`` and ``sink_position`` are as in `PartitionOffset`.
    counted: TransactionCounts | None = None
    sink_positions: dict[str, Position] = msgspec.field(name="held", default_factory=dict)


class _StoredPositions(msgspec.Struct, frozen=True, kw_only=True):
    """The stored form of the file."""

    # The file keeps the name that this field had first.
    branches: dict[str, SinkProgress] = msgspec.field(name="outlets")
    # The pipeline's position at that time: a lower offset was set by hand,
    slowest: dict[str, Position] = {}
    # except for the one before it, which a run has stored that was killed before it stored that.
    before: dict[str, Position] = {}
    version: int = 1


# Delivery stops at the last stored offset: nothing later is confirmed.
OffsetUnwritable = OffsetError.define("OffsetUnwritable", "WT-6002")
BranchPositionsUnreadable = OffsetError.define("BranchPositionsUnreadable", "WT-6203")


class BranchPositions:
    """The sink positions of one pipeline."""

    def __init__(self, path: Path) -> None:
        self._document = StateDocument(
            path, _StoredPositions, BranchPositionsUnreadable, unwritable=OffsetUnwritable
        )
        self._stored: _StoredPositions | None = None

    def load(self, stored: Positions) -> dict[str, SinkProgress]:
        """Return each sink's progress at the pipeline's position ``stored``.

        Return nothing without an offset, or after the operator moved the offset back: all sinks then
        need the changes after it again.

        Raises: BranchPositionsUnreadable.
        """
        found = self._document.load()
        if found is None or not stored:
            return {}
        lower = any(stored.get(n, p) < p for n, p in found.slowest.items())
        if lower and dict(stored) != found.before:
            return {}
        self._stored = found
        return dict(found.branches)

    def store(
        self, branches: dict[str, SinkProgress], slowest: Positions, before: Positions
    ) -> None:
        """Store changed positions durably, while the offset has ``before``.

        Raises: OffsetUnwritable.
        """
        new = _StoredPositions(branches=dict(branches), slowest=dict(slowest), before=dict(before))
        known = self._stored
        # Most flushes change nothing here: skip the fsync.
        if known is None or (new.branches, new.slowest) != (known.branches, known.slowest):
            self._document.save(new)
            self._stored = new
