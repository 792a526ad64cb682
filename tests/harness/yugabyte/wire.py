"""Positions as a slot of YugabyteDB counts them, put into the place of PostgreSQL's. Sans-IO.

A stream is numbered anew from what the slot has confirmed, and comes to the same numbers each time:
PostgreSQL sends the same transactions, in the same order, behind the same point.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from struct import Struct

EPOCH_US = 946_684_800_000_000
"""2000-01-01 in µs since 1970: the replication protocol counts from there."""
FIRST_LSN = 2
"""1 is the snapshot's."""
FIRST_XID = 2
FLUSHED = 2**64 - 1
"""What the server says of its own position."""
HEAD = Struct("!QQq")
BEGIN = Struct("!QqI")
COMMIT = Struct("!BQQq")
LOGICAL_BITS = 12


def hash_code(key: str) -> int:
    """Return what ``yb_hash_code`` says of a key of one column, by its text."""
    return int(hashlib.md5(key.encode()).hexdigest()[:4], 16)


@dataclass(frozen=True, slots=True)
class Frame:
    """One XLogData: (dataStart, walEnd, clock) and the output plugin's bytes."""

    start: int
    end: int
    sent: int
    payload: bytes

    @classmethod
    def parse(cls, data: bytes) -> "Frame":
        return cls(*HEAD.unpack_from(data, 1), data[25:])

    def encoded(self) -> bytes:
        return b"w" + HEAD.pack(self.start, self.end, self.sent) + self.payload


@dataclass
class Numbering:
    """Numbers of one stream. ``confirmed`` is the end of the last transaction that was confirmed,
    ``xid`` the id of the next. Transactions whose commit lies before ``start`` are counted and left out.
    ``hybrid``: LSNs are commit times. ``takes`` reports a change and its commit's time whether its
    row is in the range asked for, and its table one that the slot follows."""

    confirmed: int
    xid: int
    start: int = 0
    hybrid: bool = False
    takes: Callable[[bytes, int], bool] = lambda _payload, _stamp: True
    ends: list[tuple[int, int, int]] = field(default_factory=list)
    """(commit LSN, PostgreSQL's end LSN, id of the next transaction) of what was sent, in order."""
    _held: list[Frame] = field(default_factory=list)
    _announced: list[Frame] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._next = self.confirmed

    def feed(self, frame: Frame) -> list[Frame]:
        """Return what goes on: whole transactions, when their commit has come."""
        self._held.append(frame)
        if frame.payload[:1] != b"C":
            return []
        held, self._held = self._held, []
        begin, *between, commit = held
        _, _, real_end, stamp = COMMIT.unpack_from(commit.payload, 1)
        kept = [f for f in between if f.payload[:1] not in b"IUD" or self.takes(f.payload, stamp)]
        count = sum(f.payload[:1] in b"IUD" for f in kept)
        if not count:
            self._announced += kept
            if self.ends:  # nothing of it is ours: it is confirmed with the one before it
                lsn, _, xid = self.ends[-1]
                self.ends[-1] = lsn, real_end, xid
            return []
        numbers, commit_lsn = self._numbers(count, stamp)
        self.xid += 1
        self.ends.append((commit_lsn, real_end, self.xid))
        self._next = commit_lsn + 1
        announced = [f for f in kept if f.payload[:1] in b"RY"]
        if commit_lsn < self.start:  # what was announced there is announced with the next
            self._announced += announced
            return []
        kept, self._announced = self._announced + kept, []
        return list(self._rewritten(begin, kept, commit, numbers, commit_lsn, stamp))

    def _numbers(self, count: int, stamp: int) -> tuple[Iterator[int], int]:
        if self.hybrid:
            commit_lsn = max((stamp + EPOCH_US) << LOGICAL_BITS, self._next)
            return iter([commit_lsn] * count), commit_lsn
        first = self._next + 1
        return iter(range(first, first + count)), first + count

    def _rewritten(
        self,
        begin: Frame,
        kept: list[Frame],
        commit: Frame,
        numbers: Iterator[int],
        commit_lsn: int,
        stamp: int,
    ) -> Iterator[Frame]:
        first = commit_lsn if self.hybrid else self._first(commit_lsn, kept)
        head = b"B" + BEGIN.pack(commit_lsn, stamp, self.xid - 1)
        yield Frame(first, first, begin.sent, head)
        for frame in kept:
            lsn = next(numbers) if frame.payload[:1] in b"IUD" else 0
            yield Frame(lsn, lsn, frame.sent, frame.payload)
        end = commit_lsn + 1
        yield Frame(end, end, commit.sent, b"C" + COMMIT.pack(0, commit_lsn, end, stamp))

    @staticmethod
    def _first(commit_lsn: int, kept: list[Frame]) -> int:
        return commit_lsn - sum(f.payload[:1] in b"IUD" for f in kept)

    def confirm(self, lsn: int) -> int:
        """Take note that the client has flushed ``lsn``: all whose commit is no later is confirmed.
        Return PostgreSQL's position for it, 0 where that is none."""
        done = [each for each in self.ends if each[0] <= lsn]
        if not done:
            return 0
        commit_lsn, real, xid = done[-1]
        self.ends = self.ends[len(done) :]
        self.confirmed = max(self.confirmed, commit_lsn + 1)
        self._acknowledged = xid
        return real

    _acknowledged: int = 0

    @property
    def next_xid(self) -> int:
        return self._acknowledged


@dataclass(frozen=True, slots=True)
class Started:
    """A START_REPLICATION: its slot, position and options."""

    slot: str
    lsn: int
    options: dict[str, str]


def started(sql: str) -> Started:
    """Parse a START_REPLICATION command."""
    words = sql.split()
    slot, (high, low) = words[2].strip('"'), words[4].split("/")
    options: dict[str, str] = {}
    _, bracket, rest = sql.partition("(")
    if bracket:
        parts = rest.rstrip(") ;").split("'")
        names = [part.strip(' ,"') for part in parts[0::2]]
        options = dict(zip(names, parts[1::2], strict=False))
    return Started(slot, int(high, 16) << 32 | int(low, 16), options)
