"""A server that consists of a log of transactions, one slot, and links that break when told to."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from waltap.decode.message import Begin, Change, Commit, Insert, Message
from waltap.decode.relation import Relation
from waltap.decode.tuple_image import Tuple
from waltap.source.position import SOLE
from waltap_testing.simulation.clock import VirtualClock
from waltap_testing.workload import ITEMS

__all__ = ["CommittedTransaction", "SimulatedSource"]

STEP = 0x40


@dataclass(frozen=True, slots=True)
class CommittedTransaction:
    """One transaction of the log, as a decoder gives it."""

    messages: tuple[Message, ...]
    end_lsn: int


@dataclass(slots=True)
class SimulatedSource:
    """What happens on the server, and when. Times are seconds of the clock.

    ``tables`` is what a snapshot reads: relation → rows. ``read_s``: how long it takes to read a piece
    of ``piece_rows``. ``partitions`` are the names that a start gives; the log is that of
    the first. ``existing``: identifier → (schema, table) of what there is. ``links`` counts the
    streams that were opened, ``confirmed`` has what they were told: (time, LSN). ``made`` and ``undone``
    count slots.
    """

    clock: VirtualClock
    tables: dict[Relation, list[Tuple]] = field(default_factory=dict)
    partitions: tuple[str, ...] = (SOLE,)
    existing: dict[str, tuple[str, str]] = field(default_factory=dict)
    read_s: float = 0.01
    piece_rows: int = 100
    log: list[CommittedTransaction] = field(default_factory=list)
    confirmed: list[tuple[float, int]] = field(default_factory=list)
    heartbeats: list[float] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)
    slot_lsn: int | None = None
    made: int = 0
    undone: int = 0
    links: int = 0
    refused: int = 0
    reachable: bool = True
    urges: bool = False
    generation: int = 0
    wal_end: int = 0x1_0000_0000
    _serial: int = 0
    _xid: int = 700

    # --- what is done there -------------------------------------------------------------------

    def insert(self, at: float, rows: int = 1, table: Relation = ITEMS) -> None:
        """Commit a transaction of ``rows`` rows of (id, serial, name); serials count from 1 in the order
        in which transactions commit."""

        def happen() -> None:
            changes: list[Change] = []
            for _ in range(rows):
                self._serial += 1
                row: Tuple = (str(self._serial), str(self._serial), f"item {self._serial}")
                changes.append(Insert(table, self._step(), row))
            self._commit(changes)

        self.clock.at(at, happen)

    def foreign(self, at: float, octets: int = 0x1000) -> None:
        """Write WAL that is not for us."""

        def happen() -> None:
            self.wal_end += octets

        self.clock.at(at, happen)

    def cut(self, at: float) -> None:
        """Break the link that there is; another one can be made at once."""

        def happen() -> None:
            self.generation += 1

        self.clock.at(at, happen)

    def down(self, start: float, end: float) -> None:
        """Be gone between two instants: links break, and none can be made."""

        def leave() -> None:
            self.generation += 1
            self.reachable = False

        def come_back() -> None:
            self.reachable = True

        self.clock.at(start, leave)
        self.clock.at(end, come_back)

    def urge(self, at: float) -> None:
        """Ask for a sign of life, as a server that shuts down does."""

        def happen() -> None:
            self.urges = True

        self.clock.at(at, happen)

    # --- what is asked of it ------------------------------------------------------------------

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
