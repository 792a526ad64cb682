"""A server: a transaction log, a slot and breakable connections."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from waltap.changes.decode.decoder import ServerInfo
from waltap.changes.decode.message import Begin, Change, Commit, Insert, Message
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.transactions.position import SOLE, Position, SnapshotProgress
from waltap.changes.transactions.transaction import SnapshotRows
from waltap.errors import ConnectionLost
from waltap.ports.offsets.offset import Offset, PartitionOffset
from waltap.ports.snapshot.snapshotter import SnapshotFacts
from waltap.ports.source.connector import (
    ChangeStream,
    Connector,
    ConnectorContext,
    PreflightCheck,
    StartPosition,
)
from waltap.ports.source.roles import HeartbeatSource, TableListingSource
from waltap.ports.source.slot_status import SlotStatus
from waltap.ports.specs import ConnectorSpec
from waltap_testing.simulation.clock import VirtualClock
from waltap_testing.workload import ITEMS

# Bytes of WAL that each change and each commit adds.
STEP = 0x40


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """One transaction of the log, as a decoder returns it."""

    messages: tuple[Message, ...]
    end_lsn: int


@dataclass(slots=True)
class SimulatedSource:
    """Simulate a server with scheduled events and recorded use.

    All times are seconds of the clock.
    """

    # The clock that runs the scheduled events.
    clock: VirtualClock
    # Relation → rows that a snapshot reads.
    tables: dict[Relation, list[Tuple]] = field(default_factory=dict)
    # Names of the partitions at the start; the log belongs to the first one.
    partitions: tuple[str, ...] = (SOLE,)
    # Seconds that a snapshot needs to read one piece of ``piece_rows`` rows.
    read_s: float = 0.01
    piece_rows: int = 100
    # Committed transactions in commit order.
    log: list[CommittedTransaction] = field(default_factory=list)
    # (time, LSN) of each confirmation that moved the slot.
    confirmed: list[tuple[float, int]] = field(default_factory=list)
    # Times of heartbeat queries.
    heartbeats: list[float] = field(default_factory=list)
    # Times when the engine listed the existing tables.
    looks: list[float] = field(default_factory=list)
    # The confirmed position of the slot; None while no slot exists.
    slot_lsn: int | None = None
    # Slots dropped because the start failed.
    undone: int = 0
    # Streams opened, and connections refused.
    links: int = 0
    refused: int = 0
    # False while the server is down.
    reachable: bool = True
    # True until a stream reports that the server wants a reply.
    requests_reply: bool = False
    # Raised by each cut; connections of an earlier generation are broken.
    generation: int = 0
    wal_end: int = 0x1_0000_0000
    _serial: int = 0
    _xid: int = 700

    # --- schedule -----------------------------------------------------------------------------

    def insert(self, at: float, rows: int = 1, table: Relation = ITEMS) -> None:
        """Commit a transaction of ``rows`` rows (id, serial, name).

        Serials count from 1 in commit order, so that a lost or doubled row shows.
        """

        def happen() -> None:
            changes: list[Change] = []
            for _ in range(rows):
                self._serial += 1
                row: Tuple = (str(self._serial), str(self._serial), f"item {self._serial}")
                changes.append(Insert(table, self._step(), row))
            self._commit(changes)

        self.clock.at(at, happen)

    def foreign(self, at: float, octets: int = 0x1000) -> None:
        """Write WAL that the publication does not include."""
        self.clock.at(at, lambda: self._step(octets))

    def cut(self, at: float) -> None:
        """Break the open connections; the engine can reconnect at once."""
        self.clock.at(at, self._break)

    def down(self, start: float, end: float) -> None:
        """Stop the server between two times: connections break and are refused."""

        def leave() -> None:
            self._break()
            self.reachable = False

        self.clock.at(start, leave)
        self.clock.at(end, lambda: setattr(self, "reachable", True))

    def urge(self, at: float) -> None:
        """Ask for a reply, as a stopping server does."""
        self.clock.at(at, lambda: setattr(self, "requests_reply", True))

    # --- log ----------------------------------------------------------------------------------

    def after(self, lsn: int) -> Sequence[CommittedTransaction]:
        return [each for each in self.log if each.end_lsn > lsn]

    def _break(self) -> None:
        self.generation += 1

    def _step(self, octets: int = STEP) -> int:
        self.wal_end += octets
        return self.wal_end

    def _commit(self, changes: list[Change]) -> None:
        self._xid += 1
        ts = self.clock.time_ns() // 1000
        first, commit = changes[0].lsn, self._step()
        begin = Begin(lsn=first, xid=self._xid, commit_lsn=commit, commit_ts=ts)
        end = Commit(
            lsn=commit, commit_lsn=commit, end_lsn=self._step(), commit_ts=ts, xid=self._xid
        )
        self.log.append(CommittedTransaction((begin, *changes, end), end.end_lsn))


SLOT, DATABASE, SYSTEM = "simulated", "simulated", "7000000000000000001"
# The most transactions that one `receive` returns, so that the engine reads in several calls.
ROUND = 100


def connector_of(source: SimulatedSource) -> ConnectorSpec:
    """Return the spec of a connector to ``source``."""
    return ConnectorSpec(
        name="simulated",
        summary="A server in memory.",
        factory=lambda _properties, context: _SimulatedConnector(source, context),
    )


class _SimulatedConnector(Connector, TableListingSource, HeartbeatSource):
    def __init__(self, source: SimulatedSource, context: ConnectorContext) -> None:
        # A server that is down refuses the connection, and the engine retries.
        if not source.reachable:
            source.refused += 1
            raise ConnectionLost("the server is not there")
        self._source, self._context = source, context
        # A cut raises the source's generation: connections of an older generation are broken.
        self._generation, self._made_slot = source.generation, False
        self.server = ServerInfo(version_num=150000, system_id=SYSTEM, timeline=1)

    def check(self, offset: Offset | None) -> list[PreflightCheck]:
        return []

    def prepare(self, offset: Offset | None) -> StartPosition:
        source = self._source
        self._alive()
        known = SnapshotFacts(
            offset=offset is not None,
            snapshot_incomplete=offset is not None and offset.snapshot is not None,
            position_available=source.slot_lsn is not None,
            reconnects=self._context.reconnects,
        )
        snapshots = self._context.snapshotter.takes_snapshot(known)
        if source.slot_lsn is None or snapshots:
            # A snapshot needs a slot at its own position, so it replaces an existing slot.
            source.slot_lsn, self._made_slot = source.wal_end, True
        lsn = source.slot_lsn
        if offset is None or snapshots:
            snapshot = SnapshotProgress(kind="initial", lsn=lsn) if source.tables else None
            slot = PartitionOffset(
                position=Position(lsn),
                slot=SLOT,
                database=DATABASE,
                system_id=SYSTEM,
                timeline=1,
                slot_created_lsn=lsn,
            )
            offset = Offset(partitions=dict.fromkeys(source.partitions, slot), snapshot=snapshot)
        return StartPosition(
            snapshot=offset.snapshot is not None,
            stream=self._context.snapshotter.streams(known),
            offset=offset,
            slot_created=self._made_slot,
        )

    def snapshot(self, start: StartPosition) -> Iterator[SnapshotRows]:
        source = self._source
        for table, rows in source.tables.items():
            # An empty table gives one piece without rows: the sink must learn that the table is
            # complete.
            for at in range(0, max(1, len(rows)), source.piece_rows):
                source.clock.pass_until(source.read_s, self._broken, self._context.stopping)
                self._alive()
                yield SnapshotRows(
                    relation=table,
                    rows=rows[at : at + source.piece_rows],
                    ts=source.clock.time_ns() // 1000,
                    lsn=next(iter(start.offset.positions.values())).end_lsn,
                    xid=1,
                    complete=at + source.piece_rows >= len(rows),
                )

    def stream(self, position: Position) -> ChangeStream:
        self._alive()
        self._source.links += 1
        source, reported = self._source, self._context.confirmable(position.end_lsn)
        # As on a real server, START_REPLICATION confirms the position that the stream starts at.
        if source.slot_lsn is not None:  # the first status says where the stream starts
            source.slot_lsn = max(source.slot_lsn, reported)
        return _SimulatedStream(source, position)

    def describe(self, relation: Relation) -> Relation:
        return relation

    def estimate(self, relation: Relation) -> int | None:
        return len(self._source.tables.get(relation, ()))

    def existing_tables(self) -> dict[str, tuple[str, str]]:
        self._source.looks.append(self._source.clock.now)
        return {}

    def heartbeat(self) -> None:
        self._source.heartbeats.append(self._source.clock.now)

    def slot(self) -> SlotStatus | None:
        source = self._source
        if source.slot_lsn is None:
            return None
        return SlotStatus(
            name=SLOT,
            decoder="simulated",
            reader=None,
            restart_lsn=source.slot_lsn,
            confirmed_lsn=source.slot_lsn,
            server_lsn=source.wal_end,
        )

    def undo(self) -> None:
        if self._made_slot:
            self._source.slot_lsn, self._made_slot = None, False
            self._source.undone += 1

    def close(self) -> None:
        """Do nothing: a server in memory has no connection to close."""

    def _broken(self) -> bool:
        return self._source.generation != self._generation

    def _alive(self) -> None:
        if self._broken() or not self._source.reachable:
            raise ConnectionLost("the link is cut")


class _SimulatedStream(ChangeStream):
    def __init__(self, source: SimulatedSource, position: Position) -> None:
        assert source.slot_lsn is not None
        self._source, self._generation = source, source.generation
        start = max(position.end_lsn, source.slot_lsn)
        earlier = len(source.log) - len(source.after(start))
        # The slot decides where the stream starts if it is ahead of the requested position.
        self._at, self._idle, self._sent = earlier, start, start

    def receive(self, timeout: float) -> list[Message]:
        source = self._source
        source.clock.pass_until(timeout, lambda: self._broken() or self._unsent())
        if self._broken():
            raise ConnectionLost("the link is cut")
        messages: list[Message] = []
        for _ in range(min(ROUND, self._unsent())):
            committed = source.log[self._at]
            messages += committed.messages
            self._sent, self._at = committed.end_lsn, self._at + 1
        if not self._unsent():
            # All transactions were sent: the engine may confirm up to the end of the WAL.
            self._idle = source.wal_end
        return messages

    def confirm(self, end_lsn: int) -> None:
        source = self._source
        if self._broken():
            raise ConnectionLost("the link is cut")
        assert source.slot_lsn is not None
        # A position beyond the sent data would lose transactions after a restart.
        assert end_lsn <= max(self._sent, self._idle), "confirmed what was never sent"
        if end_lsn > source.slot_lsn:
            source.slot_lsn = end_lsn
            source.confirmed.append((source.clock.now, end_lsn))

    def idle_lsn(self) -> int:
        return self._idle

    def reply_requested(self) -> bool:
        reply_requested, self._source.requests_reply = self._source.requests_reply, False
        return reply_requested

    def request_keepalive(self) -> None:
        """Do nothing: every `receive` reports how far the server read."""

    def close(self) -> None:
        """Do nothing: nothing is open."""

    def _broken(self) -> bool:
        return self._source.generation != self._generation

    def _unsent(self) -> int:
        return len(self._source.log) - self._at
