"""A server made of a transaction log, one slot and breakable connections."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from waltap.changes.decode.message import Begin, Change, Commit, Insert, Message
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.transactions.position import SOLE
from waltap_testing.simulation.clock import VirtualClock
from waltap_testing.workload import ITEMS

__all__ = ["CommittedTransaction", "SimulatedSource"]

# Bytes of WAL that each change and each commit adds.
STEP = 0x40


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """One transaction of the log, as a decoder returns it."""

    messages: tuple[Message, ...]
    end_lsn: int


@dataclass(slots=True)
class SimulatedSource:
    """A simulated server, its schedule of events, and a record of its use.

    All times are seconds of the clock.
    """

    # The clock that runs the scheduled events.
    clock: VirtualClock
    # Relation → rows that a snapshot reads.
    tables: dict[Relation, list[Tuple]] = field(default_factory=dict)
    # Names of the partitions at the start; the log belongs to the first one.
    partitions: tuple[str, ...] = (SOLE,)
    # Identifier → (schema, table) of the existing tables.
    existing: dict[str, tuple[str, str]] = field(default_factory=dict)
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
    # Slots created, and slots dropped because the start failed.
    made: int = 0
    undone: int = 0
    # Streams opened, and connections refused.
    links: int = 0
    refused: int = 0
    # False while the server is down.
    reachable: bool = True
    # True until a stream reports that the server wants a reply.
    urges: bool = False
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

        def happen() -> None:
            self.wal_end += octets

        self.clock.at(at, happen)

    def cut(self, at: float) -> None:
        """Break the open connections; the engine can reconnect at once."""

        def happen() -> None:
            self.generation += 1

        self.clock.at(at, happen)

    def down(self, start: float, end: float) -> None:
        """Stop the server between two times: connections break and are refused."""

        def leave() -> None:
            self.generation += 1
            self.reachable = False

        def come_back() -> None:
            self.reachable = True

        self.clock.at(start, leave)
        self.clock.at(end, come_back)

    def urge(self, at: float) -> None:
        """Ask the client for a reply, as a server that shuts down does."""

        def happen() -> None:
            self.urges = True

        self.clock.at(at, happen)

    # --- log ----------------------------------------------------------------------------------

    def after(self, lsn: int) -> Sequence[CommittedTransaction]:
        """Return the transactions that end after ``lsn``."""
        return [each for each in self.log if each.end_lsn > lsn]

    def _step(self) -> int:
        self.wal_end += STEP
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
