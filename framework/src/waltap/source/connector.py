"""The contract of a connector: where changes come from.

Life cycle, all in the engine's thread unless said otherwise:

1. ``check(offset)``      every problem at once, nothing changed on the server;
2. ``prepare(offset)``    publication, slot, replica identities; returns how to go on;
3. ``snapshot(...)``      an iterator of `SnapshotRows`, when the start asks for one;
4. ``stream(position)``   connects and returns a `ChangeStream`;
5. ``close()``            and, when nothing was delivered, ``undo()`` before it.
"""

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from waltap.decode.decoder import Catalogue, ServerInfo
from waltap.decode.message import Message
from waltap.decode.relation import Relation
from waltap.decode.tuple_image import Tuple
from waltap.errors import SourceError, WaltapError
from waltap.offsets.offset import Offset
from waltap.offsets.owned_objects import OwnedObject, OwnedObjects
from waltap.snapshot.snapshotter import Snapshotter
from waltap.source.completeness import PublicationCompleteness
from waltap.source.password import Password
from waltap.source.position import Position, Positions
from waltap.source.relation_memory import RelationMemory
from waltap.source.setup_plan import SetupPlan
from waltap.source.slot_status import SlotStatus
from waltap.transactions.transaction import SnapshotRows, TransactionPart

if TYPE_CHECKING:
    from waltap.capture.properties import CaptureProperties
    from waltap.decode.decoder import Decoder, DecoderCapabilities, DecoderContext
    from waltap.decode.replica_identity import IdentityWarning
    from waltap.signals.signal import SnapshotRequest
    from waltap.snapshot.chunk import SnapshotChunk
    from waltap.snapshot.chunk_source import ChunkSource

__all__ = [
    "ChangeStream",
    "Connector",
    "ConnectorContext",
    "DecoderChoice",
    "MadeByRun",
    "PreflightCheck",
    "SlotStatus",
    "SnapshotOverlap",
    "SourceLacks",
    "StartPosition",
    "StopRequested",
]


class SourceLacks(SourceError):
    """The source is asked for what its connector does not offer."""

    code = "WT-2025"
    remedy = "Leave out what asks for it, or use a connector that offers it."


class StopRequested(Exception):
    """A wait of the connector ended because `ConnectorContext.stopping` said so; no failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderChoice:
    """The decoder of a profile: how the connector makes it, and what it may know of it before.

    ``options`` are its properties by their names, those that its spec forces included. ``two_phase``:
    transactions are to be decoded when they are prepared.
    """

    name: str
    output_plugin: str
    capabilities: "DecoderCapabilities"
    factory: "Callable[[DecoderContext], Decoder]"
    options: Mapping[str, object] = field(default_factory=dict)
    two_phase: bool = False


@dataclass(slots=True, kw_only=True)
class MadeByRun:
    """What one run has made on the server, over its reconnects; the connector keeps it.

    ``publications`` and ``slots`` are names, a slot's from the moment that it is asked for.
    ``unreadable`` says why a slot, by name, cannot be read on and is to be made anew. ``sessions`` are the
    server's process ids of those that read, or could read, a slot for this run.
    """

    publications: set[str] = field(default_factory=set)
    slots: set[str] = field(default_factory=set)
    unreadable: dict[str, SourceError] = field(default_factory=dict)
    sessions: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorContext:
    """What a connector may know when it is made.

    ``captures`` tells for (schema, table) whether the profile wants the table; ``capture`` has the
    properties behind that, and the signal table. ``snapshotter`` decides about snapshots;
    ``snapshot_query`` and ``snapshot_lock``, where given, about SELECTs and locks in its place.
    ``stopping`` tells, during waits, that the engine wants to stop. ``debezium``: the profile is a
    Debezium file, whose defaults count. ``status_interval_ms``: how often the server wants to hear
    from us. ``budgeted``: the profile bounds what the slot may keep. ``retries``: a link that breaks
    is made again. ``leased``: this process has the pipeline's lease, so that a reader of its slot that
    was one too has lost it. ``delivers_prepared``: transactions are delivered when they are prepared.
    ``resumes_snapshot``: an initial snapshot that broke off may go on; else it is taken anew.
    ``restarts_tables``: then it may also read a table anew that is not complete
    (`SnapshotRows.restarts`). ``repairs``: where the stored position is lost, a start goes on at a
    slot as it can be had now, without a snapshot.

    ``made`` is the connector's to keep what this run makes. ``reconnects`` tells that the run has
    streamed, or read rows, before. ``belongings`` is what the pipeline has on servers, over its runs: a
    connector keeps an entry before it makes a slot or a publication, and forgets it after the thing is
    gone. A slot that is there, while neither an offset nor an entry ties it to the pipeline, is another's:
    it is not used without consent.

    ``announced`` is to be called with each relation that the server announces in the stream, described;
    ``forget`` with the OID of one that is gone, and an LSN behind which no row of it commits. ``memory``
    holds what was described before; the connector opens it for its database, and puts in what it
    describes.
    ``identity_warnings`` gives what a user should know of a relation's replica identity, ``left_out`` the
    columns of a described one that nothing delivers, since nothing maps their types, ``mask_check``
    what is wrong where a mask is for one that it cannot change. ``password`` gives that of the next
    connection where a plugin has a say (``choose_password``); None, or what is None: the profile's.
    ``confirmable`` gives, of the LSN that a stream starts at, what the server may be told as durable for
    now; it is never more.
    """

    captures: Callable[[str, str], bool]
    capture: "CaptureProperties"
    decoder: DecoderChoice
    snapshotter: Snapshotter
    snapshot_query: Snapshotter | None = None
    snapshot_lock: Snapshotter | None = None
    stopping: Callable[[], bool] = lambda: False
    debezium: bool = False
    status_interval_ms: int = 10_000
    budgeted: bool = False
    retries: bool = True
    leased: bool = False
    delivers_prepared: bool = False
    resumes_snapshot: bool = False
    restarts_tables: bool = False
    repairs: bool = False
    made: MadeByRun = field(default_factory=MadeByRun)
    reconnects: bool = False
    belongings: OwnedObjects = field(default_factory=OwnedObjects)
    announced: "Callable[[Relation], None]" = lambda _relation: None
    forget: "Callable[[int, int], None]" = lambda _oid, _lsn: None
    memory: RelationMemory = field(default_factory=RelationMemory)
    identity_warnings: "Callable[[Relation], list[IdentityWarning]]" = lambda _relation: []
    left_out: "Callable[[Relation], tuple[str, ...]]" = lambda _relation: ()
    mask_check: "Callable[[Relation], PreflightCheck | None]" = lambda _relation: None
    password: Password | None = None
    confirmable: Callable[[int], int] = lambda lsn: lsn
    meant_for: "Callable[[str], str | None]" = lambda _version: None
    """Gives, of what a server says of its version, the name of another connector that is for such servers;
    None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightCheck:
    """One thing that was looked at before a start. ``verdict``: ok, warning or error.

    ``remedy`` is the command, SQL or property that fixes it, and suffices. ``error`` is what a run that
    is refused for it raises.
    """

    name: str
    verdict: str
    found: str
    remedy: str = ""
    error: WaltapError | None = field(default=None, compare=False, repr=False)

    @classmethod
    def failed(cls, name: str, error: WaltapError) -> "PreflightCheck":
        """Return the check that found what a run would raise as ``error``."""
        return cls(
            name=name, verdict="error", found=error.problem, remedy=error.advice(), error=error
        )

    def as_warning(self) -> "PreflightCheck":
        """Return a failed check as a warning."""
        if self.verdict != "error":
            return self
        return PreflightCheck(
            name=self.name, verdict="warning", found=self.found, remedy=self.remedy
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPosition:
    """How a run goes on after ``prepare``.

    ``snapshot``: take a snapshot first. ``stream``: stream after it. ``offset``: where each partition
    goes on from, and the server history that its positions belong to. ``notes`` are for the log.
    ``slot_created``: the slot was made for this start. ``resumes``: the snapshot is the one that the
    stored offset says has begun, and goes on; ``offset`` holds what is known of it. ``lost``: why what
    lies between the stored offset and this one cannot be had. ``coverage``: of which tables the stream
    brings every change.
    """

    snapshot: bool
    stream: bool
    offset: Offset
    notes: tuple[str, ...] = field(default=())
    slot_created: bool = False
    resumes: bool = False
    lost: WaltapError | None = None
    coverage: PublicationCompleteness = field(default_factory=PublicationCompleteness)


class SnapshotOverlap(Protocol):
    """What of a stream a snapshot has read already; `Offset.visible_in` is its connector's own text.

    ``horizon`` is an LSN: nothing is left out of what commits behind it, and the offset forgets the rest
    once the stream is there."""

    horizon: int

    def filter(self, parts: "list[TransactionPart]") -> "list[TransactionPart]":
        """Return ``parts`` without the changes that the snapshot contains; no part is left out."""


class ChangeStream(abc.ABC):
    """An open replication stream. `receive` belongs to one thread; `confirm` to any.

    ``confirms``: the server hears what is durable. Where it does not, because somebody else moves the
    slot, `confirm` is not called.
    """

    confirms: bool = True

    @abc.abstractmethod
    def receive(self, timeout: float) -> list[Message]:
        """Return the messages that have arrived, [] after ``timeout`` seconds without any.

        Raises: ConnectionLost, DecodeError, SourceError.
        """

    @abc.abstractmethod
    def confirm(self, end_lsn: int) -> None:
        """Tell the server that everything up to ``end_lsn`` is durable; never moves backwards."""

    @abc.abstractmethod
    def idle_lsn(self) -> int:
        """Return the LSN up to which the server has said that there is nothing (more) for us."""

    def urged(self) -> bool:
        """Tell whether the server has asked for a sign of life since the last call: one that shuts down
        waits until everything it has sent is confirmed."""
        return False

    @abc.abstractmethod
    def ask(self) -> None:
        """Ask the server how far it has read; the answer shows in `idle_lsn`."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the stream and the connection; may be called twice."""


class Connector(abc.ABC):
    """A database that changes are captured from."""

    server: ServerInfo
    catalogue: Catalogue
    outlives: bool = True
    """Whether a new connection goes on where this one ends."""

    @abc.abstractmethod
    def check(self, offset: Offset | None) -> list[PreflightCheck]:
        """Look at everything that a start with this stored offset needs; changes nothing.

        Whatever makes `prepare` refuse is an error here, and nothing else: `waltap doctor` prints the
        checks, and a run goes through them before anything is made. Raises: ConnectionLost.
        """

    def plan(self, offset: Offset | None) -> SetupPlan:
        """Return what `prepare` would make with this stored offset, and which tables would be captured;
        changes nothing. Raises: SourceError, OffsetError, SnapshotError where `prepare` would;
        SourceLacks where the source makes nothing that could be told."""
        raise SourceLacks("this source tells nothing of its set-up before the start")

    def offset_at(self, position: Position) -> Offset:
        """Return the offset of a pipeline that goes on from ``position``, tied to the server as it is now;
        another engine has come that far with the slot. Raises: SourceError; SourceLacks where no other
        engine reads such slots."""
        raise SourceLacks("this database takes no positions from other engines")

    def lost(self, offset: Offset) -> WaltapError | None:
        """Return why streaming cannot go on from ``offset``, None when it can. Raises: SourceError."""
        return None

    @abc.abstractmethod
    def prepare(self, offset: Offset | None) -> StartPosition:
        """Make what is missing and decide how to start.

        Raises: SourceError, OffsetError, SnapshotError, StopRequested.
        """

    @abc.abstractmethod
    def snapshot(self, start: StartPosition) -> Iterator[SnapshotRows]:
        """Read the tables in the snapshot that belongs to ``start``, in pieces; `SnapshotRows` has the
        contract. Raises: SnapshotError, ConnectionLost, StopRequested.
        """

    def snapshot_over(self, *, completed: bool) -> None:
        """What `snapshot` gave is over: every row is durable, or (``completed`` false) something came in
        between. For the snapshot mode's `Snapshotter.after`; what that raises, this raises."""

    def chunks(self, start: StartPosition) -> "Sequence[SnapshotChunk]":
        """Return what `snapshot` would read, instead of it, as parts that other processes can read; all
        see the one snapshot. Until `snapshot_over` or `close` nobody can rewrite or empty the tables.

        Raises: SnapshotError, SourceError; SourceLacks where the source cannot share a snapshot.
        """
        raise SourceLacks("this database shares no snapshot with other processes")

    @abc.abstractmethod
    def stream(self, position: Position) -> ChangeStream:
        """Start streaming after ``position``.

        Raises: ConnectionLost, SourceError, StopRequested.
        """

    def streams(self, positions: Positions) -> "Mapping[str, ChangeStream]":
        """Start streaming each partition after its position; by their names. Where it fails none is left
        open. Raises: as `stream`."""
        (name,) = positions
        return {name: self.stream(positions.sole)}

    merges_within_s: float | None = None
    """Where transactions of several partitions are to be delivered in the order of their commits, which
    must be comparable: for how long one may be silent before the others go on; None: each by itself."""

    def overlap(self, offset: Offset) -> SnapshotOverlap | None:
        """Return what the stream after ``offset`` leaves out, None for nothing."""
        return None

    @abc.abstractmethod
    def describe(self, relation: Relation) -> Relation:
        """Complete a relation of the stream from the catalogue. Raises: ConnectionLost."""

    def query(self, sql: str, parameters: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
        """Return the rows of a statement that only reads; ``parameters`` stand for its ``%s``.

        For the checks of plugins. Raises: SourceError; SourceLacks where the source knows no SQL.
        """
        raise SourceLacks("this source knows no SQL")

    def rows_now(
        self,
        relation: Relation,
        columns: Sequence[str],
        key: Sequence[str],
        keys: Sequence[Tuple],
    ) -> list[Tuple]:
        """Return ``columns`` of the rows of ``relation`` whose ``key`` columns have one of these ``keys``,
        as they are now, as the server's text and in any order; a row that is gone is not there.

        Raises: ConnectionLost; SourceError where the table is gone or has other columns by now;
        SourceLacks where the source knows no rows by key.
        """
        raise SourceLacks("this source reads no rows by their keys")

    def decoder(self) -> "Decoder | None":
        """Return a decoder as a stream would have it, for whoever looks into it. Raises: SourceError."""
        return None

    def renew(self, relation: Relation) -> Relation:
        """Return a described relation with its data types as they are now; the same object when they are
        unchanged. Asked when a value came that its type, as described, does not have."""
        return relation

    def estimate(self, relation: Relation) -> int | None:
        """Return about how many rows a table has, None when that is not known."""
        return None

    def chunk_source(self, signal_table: tuple[str, str] | None) -> "ChunkSource | None":
        """Return how to read tables in chunks, None when this connector cannot. ``signal_table``: where
        watermarks are written; None: nowhere, and chunks say where in the stream they belong
        (`Chunk.until`)."""
        return None

    def read_tables(
        self,
        requests: "Sequence[SnapshotRequest]",
        refused: "Callable[[SnapshotRequest, str], None]",
    ) -> Iterator[SnapshotRows]:
        """Read tables as they are now, for a blocking snapshot: in one snapshot of the database, with
        the markers of an initial one, in pieces; `SnapshotRows` has the contract.

        A request's condition is a SELECT that comes from outside: it must not be able to write, nor take
        longer than the profile allows. ``refused`` is told of tables that cannot be read, with the
        reason; the others are. Raises: ConnectionLost, StopRequested; SourceLacks where the source
        cannot.
        """
        raise SourceLacks("this source takes no blocking snapshots")

    def captured_tables(self) -> dict[str, str]:
        """Return identifier → schema.table of what this start captures. An identifier stays when a
        table is renamed, and is never used again. Raises: SourceError."""
        return {}

    def existing_tables(self) -> dict[str, tuple[str, str]]:
        """Return identifier → (schema, table) of every table there is now; cheap. Raises: SourceError."""
        return {}

    def column_names(self) -> Sequence[tuple[str, str, str | None, str | None]]:
        """Return (schema, table, column, type) of every column there is now; a table without columns once,
        with None. (): it is not known. Raises: SourceError."""
        return ()

    def streams_new(self, schema: str, table: str) -> bool:
        """Tell whether the server streams that table from its creation on, without being told of it.
        Raises: SourceError."""
        return True

    def adds_tables(self) -> bool:
        """Tell whether a start has the server stream captured tables that it does not stream by itself, so
        that `publish` may do so before."""
        return False

    def unsent(self) -> frozenset[str]:
        """Return identifiers of tables that the profile captures and of which the server does not stream
        everything as things are: what is written to them meanwhile does not come. Changes nothing.
        Raises: SourceError."""
        return frozenset()

    def slot_xmin(self) -> int | None:
        """Return what becomes ``source.xmin`` of the changes that have just come, None for nothing. Asked
        with each batch of them: a connector asks its server as seldom as the profile wants it.
        Raises: SourceError."""
        return None

    def publish(self, tables: Sequence[tuple[str, str]], *, wanted: bool) -> list[tuple[str, str]]:
        """Have the server stream these (schema, table) from now on, or no more; return those for which
        that is new. Nothing that was written before is under way then: whoever reads a table afterwards
        misses nothing. A pipeline may be running. Raises: SourceError."""
        return []

    def writers(self, identifier: str) -> frozenset[str]:
        """Return the open transactions that may have written to a table: what they wrote before it was
        published does not come, and is not visible until they end. Raises: SourceError."""
        return frozenset()

    def streamed_as(self) -> Mapping[str, Sequence[str | None]]:
        """Return, for identifiers of tables where it can be known, who streams the table and how: texts
        for `streamed_otherwise`, kept until the next start. Raises: SourceError."""
        return {}

    def streamed_otherwise(
        self, before: Mapping[str, Sequence[str | None]], now: Mapping[str, Sequence[str | None]]
    ) -> frozenset[str]:
        """Return the tables of which something may not have been streamed between two `streamed_as`, also
        where it was changed and changed back. Another version may have written ``before``.
        Raises: SourceError."""
        return frozenset()

    def heartbeat(self) -> None:
        """Do what the profile wants done on the server with each heartbeat."""

    def finish(self) -> bool:
        """Do what the profile wants done on the server at a clean stop.

        True when the stored offset is of no more use, because its slot is gone by intent.
        """
        return False

    def slot(self) -> SlotStatus | None:
        """Return where the replication slot stands, None when there is none. Raises: SourceError."""
        return None

    def wal_end(self) -> int | None:
        """Return the end of the source's log, None where it has none that could be told. Raises:
        SourceError."""
        return None

    def slots(self) -> list[SlotStatus]:
        """Return every slot of the database, whoever made it, by name. Raises: SourceError."""
        return []

    def drop_slot(self) -> bool:
        """Drop the replication slot; False when there is none. Raises: SourceError."""
        return False

    def belongings(self, offset: Offset | None) -> list[OwnedObject]:
        """Return what the pipeline has on this server and is still there. ``offset`` is the stored one,
        which tells of a slot that nothing else is known of. Raises: SourceError."""
        return []

    def belongings_elsewhere(self) -> list[OwnedObject]:
        """Return what the pipeline made in other databases or on other servers, as far as it is known:
        the profile led there once."""
        return []

    def drop(self, belonging: OwnedObject) -> None:
        """Remove a thing that the pipeline made, and forget it. Raises: SourceError."""

    @abc.abstractmethod
    def undo(self) -> None:
        """Remove what this connector made on the server; called when a start fails early."""

    @abc.abstractmethod
    def close(self) -> None:
        """Release every connection; may be called twice."""
