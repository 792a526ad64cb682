"""Define the contract of a connector, which reads changes from a source.

Life cycle, all in the engine's thread unless stated otherwise:

1. ``check(offset)``      reports every problem and changes nothing on the server;
2. ``prepare(offset)``    creates publication and slot, sets replica identities, returns the start;
3. ``snapshot(...)``      iterates over `SnapshotRows`, if the start needs a snapshot;
4. ``stream(position)``   connects and returns a `ChangeStream`;
5. ``close()``            comes last, after ``undo()`` if nothing was delivered.
"""

import abc
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from waltap.changes.decode.decoder import Catalogue, ServerInfo
from waltap.changes.decode.message import Message
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import SnapshotRows, TransactionPart
from waltap.errors import SourceError, WaltapError
from waltap.ports.offsets.offset import Offset
from waltap.ports.offsets.owned_objects import OwnedObjects
from waltap.ports.snapshot.snapshotter import Snapshotter
from waltap.ports.source.password import Password
from waltap.ports.source.relation_memory import RelationMemory
from waltap.ports.source.slot_status import SlotStatus

if TYPE_CHECKING:
    from waltap.changes.capture.properties import CaptureProperties
    from waltap.changes.decode.decoder import Decoder, DecoderCapabilities, DecoderContext
    from waltap.changes.decode.replica_identity import IdentityWarning


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTable:
    """One captured table, described."""

    relation: Relation
    # An estimate; None if unknown.
    rows: int | None = None
    # Size on the server; None if unknown.
    bytes: int | None = None
    # Whether the snapshot of this start reads its rows.
    read: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupPlan:
    """The objects that a start would create, and the tables."""

    # SQL that the start would run, in order.
    statements: tuple[str, ...]
    # SQL that the operator must run before: the start may not, or does not, run it.
    by_others: tuple[str, ...]
    # Replication command that creates the slot; the server then retains WAL. None: no new slot.
    slot: str | None
    # Sorted by name.
    tables: tuple[PlannedTable, ...]


# Sinks need it that must know whether a change can be missing.
@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationCompleteness:
    """The tables of which a stream delivers every change.

    Without arguments nothing is known.
    """

    # By (schema, table): a text for each table at the setup of the stream, "" for one that may
    # be published in part. The text differs after any change of the table's publication, even
    # if another change reverted that.
    tables: Mapping[tuple[str, str], str] = field(default_factory=dict)
    # The text of tables that are created later.
    others: str = ""
    # The texts hold for transactions that commit at this LSN or later.
    since: int = 0
    # Whether nothing is missing between the delivered changes and the stream.
    continuous: bool = False

    def of(self, schema: str, table: str) -> str:
        return self.tables.get((schema, table), self.others)


SourceLacks = SourceError.define("SourceLacks", "WT-2025")


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderChoice:
    """The decoder of a profile, before the connector creates it."""

    name: str
    output_plugin: str
    capabilities: "DecoderCapabilities"
    factory: "Callable[[DecoderContext], Decoder]"
    # Its properties by name, including those that its spec forces.
    options: Mapping[str, object] = field(default_factory=dict)
    # Whether transactions are decoded at PREPARE TRANSACTION.
    two_phase: bool = False


@dataclass(slots=True, kw_only=True)
class MadeByRun:
    """The server objects that one run created, over its reconnects."""

    publications: set[str] = field(default_factory=set)
    # A slot is listed from the moment of the request: its creation may outlive the connection.
    slots: set[str] = field(default_factory=set)
    # Why a slot, by name, can no longer be read and must be recreated.
    unreadable: dict[str, SourceError] = field(default_factory=dict)
    # Process ids of the server's sessions that may read a slot for this run.
    sessions: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorContext:
    """The state and callbacks that the engine gives to a new connector."""

    # Returns whether the profile captures (schema, table).
    captures: Callable[[str, str], bool]
    # The properties behind `captures`, and the signal table.
    capture: "CaptureProperties"
    decoder: DecoderChoice
    # Decides about snapshots, with the SELECTs and locks unless the next two fields are set.
    snapshotter: Snapshotter
    snapshot_query: Snapshotter | None = None
    snapshot_lock: Snapshotter | None = None
    # Returns whether the engine wants to stop; asked during waits.
    stopping: Callable[[], bool] = lambda: False
    # Whether the profile is a Debezium file, whose defaults apply.
    debezium: bool = False
    # How often the server expects a status update.
    status_interval_ms: int = 10_000
    # Whether the profile limits the WAL that the slot may retain.
    limits_wal: bool = False
    # Whether a broken connection is made again.
    retries: bool = True
    # Whether this process has the lease: an older reader of the slot has then lost it.
    leased: bool = False
    # Whether transactions are delivered at PREPARE TRANSACTION.
    delivers_prepared: bool = False
    # Whether an interrupted initial snapshot may resume; otherwise a new one is taken.
    resumes_snapshot: bool = False
    # Whether a resumed snapshot may read an incomplete table again (`SnapshotRows.restarts`).
    restarts_tables: bool = False
    # Whether the sinks read a snapshot's columns as values of their Arrow types.
    typed_columns: bool = False
    # Whether a sink knows columns by their numbers (`SinkCapabilities.follows_numbers`).
    follows_numbers: bool = False
    # Whether a start with a lost position continues at a new slot without a snapshot.
    repairs: bool = False
    # The connector records here which objects this run created.
    made: MadeByRun = field(default_factory=MadeByRun)
    # Whether this run has streamed or read rows before.
    reconnects: bool = False
    # The pipeline's objects over all runs. A connector records an entry before it creates an
    # object, and removes the entry after it dropped the object. An existing slot without an
    # entry or an offset belongs to another pipeline: it is not used without consent.
    owned_objects: OwnedObjects = field(default_factory=OwnedObjects)
    # Call it with each described relation that the server announces in the stream.
    announced: "Callable[[Relation], None]" = lambda _relation: None
    # Call it with one of them that had changes under a name that is not captured, or with
    # ambiguous columns (`RelationMemory.returns`).
    returned: "Callable[[Relation], None]" = lambda _relation: None
    # Call it with the OID of a dropped relation and an LSN after which none of its rows commits.
    forget: "Callable[[int, int], None]" = lambda _oid, _lsn: None
    # Earlier descriptions. The connector opens it for its database and adds what it describes.
    memory: RelationMemory = field(default_factory=RelationMemory)
    # Returns the warnings about a relation's replica identity.
    identity_warnings: "Callable[[Relation], list[IdentityWarning]]" = lambda _relation: []
    # Returns the columns that are never delivered, because no mapping has their types.
    left_out: "Callable[[Relation], tuple[str, ...]]" = lambda _relation: ()
    # Returns the failed check where a mask is set on a column that it cannot change.
    mask_check: "Callable[[Relation], PreflightCheck | None]" = lambda _relation: None
    # A plugin's password for the next connection (``choose_password``); None: the profile's.
    password: Password | None = None
    # Returns the LSN that may be confirmed for a stream's start LSN; never a greater one.
    confirmable: Callable[[int], int] = lambda lsn: lsn
    connector_for: "Callable[[str], str | None]" = lambda _version: None
    """Returns the name of the connector for a server with this version text, None without one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightCheck:
    """The result of one check before a start."""

    name: str
    # ok, warning or error.
    verdict: str
    found: str
    # The command, SQL or property that fixes the problem; sufficient by itself.
    remedy: str = ""
    # The error that a refused run raises.
    error: WaltapError | None = field(default=None, compare=False, repr=False)

    @classmethod
    def ok(cls, name: str, found: str) -> "PreflightCheck":
        return cls(name=name, verdict="ok", found=found)

    @classmethod
    def warning(cls, name: str, found: str, remedy: str) -> "PreflightCheck":
        """Return a warning, which does not refuse the run."""
        return cls(name=name, verdict="warning", found=found, remedy=remedy)

    @classmethod
    def failed(cls, name: str, error: WaltapError) -> "PreflightCheck":
        """Return the failed check for an ``error`` that a run would raise."""
        return cls(
            name=name, verdict="error", found=error.problem, remedy=error.advice(), error=error
        )

    def as_warning(self) -> "PreflightCheck":
        return replace(self, verdict="warning") if self.verdict == "error" else self


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPosition:
    """The position and mode of a run after ``prepare``."""

    # Whether a snapshot comes first, and whether streaming follows.
    snapshot: bool
    stream: bool
    offset: Offset
    # Texts for the log.
    notes: tuple[str, ...] = field(default=())
    # Whether the slot was created for this start.
    slot_created: bool = False
    # Whether the snapshot is the unfinished one of the stored offset.
    resumes: bool = False
    # Why the changes between the stored offset and this start are lost.
    lost: WaltapError | None = None
    # The tables of which the stream delivers every change.
    completeness: PublicationCompleteness = field(default_factory=PublicationCompleteness)


class SnapshotOverlap(Protocol):
    """The part of a stream that a snapshot has read already.

    `PartitionOffset.visible_in` is the connector's own text for it.
    """

    # LSN after which nothing is skipped. The offset drops the overlap once the stream is there.
    horizon: int

    def filter(self, parts: "list[TransactionPart]") -> "list[TransactionPart]":
        """Return ``parts`` without the changes that the snapshot contains.

        Every part stays, even without changes.
        """


class ChangeStream(abc.ABC):
    """An open replication stream.

    One thread calls `receive`; any thread may call `confirm`.
    """

    # Whether the server receives confirmations. It is false where another process advances the
    # slot; `confirm` is then not called.
    confirms: bool = True

    @abc.abstractmethod
    def receive(self, timeout: float) -> list[Message]:
        """Return the received messages, [] after ``timeout`` seconds without any.

        Raises: ConnectionLost, DecodeError, SourceError.
        """

    @abc.abstractmethod
    def confirm(self, end_lsn: int) -> None:
        """Confirm to the server that everything up to ``end_lsn`` is durable.

        The confirmed LSN never moves backwards.
        """

    @abc.abstractmethod
    def idle_lsn(self) -> int:
        """Return the LSN up to which the server has nothing more to send."""

    def reply_requested(self) -> bool:
        """Return whether the server has requested a reply since the last call.

        A server that shuts down waits until the client confirms everything that it sent.
        """
        return False

    @abc.abstractmethod
    def request_keepalive(self) -> None:
        """Request the server's read position, which `idle_lsn` then returns."""

    @abc.abstractmethod
    def close(self) -> None:
        """Close the stream and the connection; may be called twice."""


class Connector(abc.ABC):
    """A source database of changes."""

    server: ServerInfo
    catalogue: Catalogue | None = None
    reconnectable: bool = True
    """Whether a new connection can resume where this one ends."""

    def once(self) -> AbstractContextManager[None]:
        """Ask the source equal questions once while the block lasts.

        The block neither changes the source nor waits for a change.
        """
        return nullcontext()

    @abc.abstractmethod
    def check(self, offset: Offset | None) -> list[PreflightCheck]:
        """Check everything that a start with this stored offset needs.

        Exactly the problems that make `prepare` refuse are errors here. `waltap doctor` prints the
        checks. A run executes them before it creates anything. The method changes nothing. Raises:
        ConnectionLost.
        """

    def lost(self, offset: Offset) -> WaltapError | None:
        """Return why streaming cannot resume from ``offset``, None if it can.

        Raises: SourceError.
        """
        return None

    @abc.abstractmethod
    def prepare(self, offset: Offset | None) -> StartPosition:
        """Create missing server objects and decide how to start.

        Raises: SourceError, OffsetError, SnapshotError, StopRequested.
        """

    @abc.abstractmethod
    def snapshot(self, start: StartPosition) -> Iterator[SnapshotRows]:
        """Read the tables in the snapshot of ``start``, in pieces.

        `SnapshotRows` has the contract. Raises: SnapshotError, ConnectionLost, StopRequested.
        """

    @abc.abstractmethod
    def stream(self, position: Position) -> ChangeStream:
        """Start streaming after ``position``.

        Raises: ConnectionLost, SourceError, StopRequested.
        """

    def overlap(self, offset: Offset) -> SnapshotOverlap | None:
        """Return the overlap of the snapshot and the stream after ``offset``.

        None: the stream skips nothing.
        """
        return None

    @abc.abstractmethod
    def describe(self, relation: Relation) -> Relation:
        """Complete a relation of the stream from the catalogue.

        Raises: ConnectionLost.
        """

    def renew(self, relation: Relation) -> Relation:
        """Return a described relation with its present data types.

        It is the same object if the types are unchanged. The engine calls it for a value that the
        described type does not have.
        """
        return relation

    def finish(self) -> bool:
        """Run the profile's action for a clean stop on the server.

        Return whether the stored offset is useless, because the slot was dropped on purpose.
        """
        return False

    def slot(self) -> SlotStatus | None:
        """Return the state of the replication slot, None without one.

        Raises: SourceError.
        """
        return None

    @abc.abstractmethod
    def undo(self) -> None:
        """Remove this connector's new objects after a start that failed early."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release every connection; may be called twice."""
