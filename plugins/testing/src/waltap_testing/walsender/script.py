"""Scripts of a walsender: the steps after START_REPLICATION, in order.

    [XLogData(begin, lsn=0x100), XLogData(commit, lsn=0x180),
     AwaitConfirmed(0x180), SendKeepalive(0x200)]

A step that waits has a deadline, and the test fails when it passes. After the last step the server
sends nothing and reads feedback until the client leaves.
"""

from dataclasses import dataclass, field
from struct import pack

from waltap_testing.walsender import wire

# 2026-01-01 00:00 UTC in µs: the default send time of frames, so that their bytes repeat.
SENT = 1_767_225_600_000_000


@dataclass(frozen=True, slots=True)
class XLogData:
    """One message of an output plugin."""

    payload: bytes
    lsn: int = 0
    # None: the same as ``lsn``, as PostgreSQL sends it in logical replication.
    wal_end: int | None = None
    # The server's clock in µs since 1970 UTC.
    sent: int = SENT

    def encoded(self) -> bytes:
        end = self.lsn if self.wal_end is None else self.wal_end
        head = pack("!cQQq", b"w", self.lsn, end, self.sent - wire.EPOCH_US)
        return wire.copy_data(head + self.payload)


@dataclass(frozen=True, slots=True)
class SendKeepalive:
    """A primary keepalive; ``reply`` requests an immediate status update."""

    wal_end: int
    reply: bool = False
    sent: int = SENT

    def encoded(self) -> bytes:
        sent = self.sent - wire.EPOCH_US
        return wire.copy_data(pack("!cQqB", b"k", self.wal_end, sent, self.reply))


@dataclass(frozen=True, slots=True)
class SendRaw:
    """A CopyData message with any payload, valid or not."""

    payload: bytes

    def encoded(self) -> bytes:
        return wire.copy_data(self.payload)


Sending = XLogData | SendKeepalive | SendRaw


@dataclass(frozen=True, slots=True)
class SendPieces:
    """One message in several writes.

    The writes have ``sizes[0]`` bytes, then ``sizes[1]`` and so on, then the rest.
    """

    of: Sending
    sizes: tuple[int, ...]
    # Seconds between writes, long enough that the client receives each piece alone.
    gap: float = 0.01


@dataclass(frozen=True, slots=True)
class SendHalf:
    """The first ``keep`` bytes of a message; `CutConnection` usually follows."""

    of: Sending
    keep: int


@dataclass(frozen=True, slots=True)
class PauseSeconds:
    """Silence for ``seconds``; ends early when the client leaves."""

    seconds: float


@dataclass(frozen=True, slots=True)
class AwaitConfirmed:
    """Waits for a status update that confirms (flushes) at least ``lsn``."""

    lsn: int
    within: float = 60.0


@dataclass(frozen=True, slots=True)
class AwaitFeedback:
    """Waits for ``count`` status updates since the last sent frame."""

    count: int = 1
    within: float = 60.0


@dataclass(frozen=True, slots=True)
class ServerError:
    """An ErrorResponse in a stream or to a query.

    As on a real server, ERROR ends the stream and leaves the connection in command mode; FATAL
    also closes the connection.
    """

    sqlstate: str
    text: str
    severity: str = "ERROR"
    detail: str = ""
    hint: str = ""
    context: str = ""

    def encoded(self) -> bytes:
        more = {"D": self.detail, "H": self.hint, "W": self.context}
        return wire.error_response(self.severity, self.sqlstate, self.text, **more)


@dataclass(frozen=True, slots=True)
class CopyDone:
    """The server ends the stream, then waits for the client's CopyDone."""


@dataclass(frozen=True, slots=True)
class CutConnection:
    """The server closes the connection without a message."""

    # True: with a TCP reset, not an orderly close.
    reset: bool = False


Step = (
    XLogData
    | SendKeepalive
    | SendRaw
    | SendPieces
    | SendHalf
    | PauseSeconds
    | AwaitConfirmed
    | AwaitFeedback
    | ServerError
    | CopyDone
    | CutConnection
)


@dataclass(frozen=True, slots=True)
class StreamScript:
    """The steps of one START_REPLICATION."""

    steps: tuple[Step, ...] = field(default=())
    # A regular expression that the command must match, else the client gets an error. A test thus
    # checks the requested position and options.
    matches: str = ""
