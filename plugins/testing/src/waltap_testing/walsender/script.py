"""What a scripted walsender does once replication has started: a list of steps, played in order.

    [XLogData(begin, lsn=0x100), XLogData(commit, lsn=0x180), Confirmed(0x180), Keepalive(0x200)]

Steps that send say which bytes; steps that wait have a deadline and fail the test when it passes.
After the last step the server stays silent and keeps reading feedback until the client leaves.
"""

from dataclasses import dataclass, field

from waltap_testing.walsender import wire

__all__ = [
    "AwaitConfirmed",
    "AwaitFeedback",
    "CopyDone",
    "CutConnection",
    "PauseSeconds",
    "SendHalf",
    "SendKeepalive",
    "SendPieces",
    "SendRaw",
    "Sending",
    "ServerError",
    "Step",
    "StreamScript",
    "XLogData",
]

SENT = 1_767_225_600_000_000
"""2026-01-01 00:00 UTC in µs: the send time of frames that name none, so that bytes repeat."""


@dataclass(frozen=True, slots=True)
class XLogData:
    """One message of an output plugin. ``wal_end`` is ``lsn`` unless said otherwise (as the server
    does for logical replication); ``sent`` is the server's clock, µs since 1970 UTC.
    """

    payload: bytes
    lsn: int = 0
    wal_end: int | None = None
    sent: int = SENT

    def encoded(self) -> bytes:
        """Return the bytes on the socket."""
        end = self.lsn if self.wal_end is None else self.wal_end
        return wire.copy_data(wire.xlog_data(self.lsn, end, self.sent, self.payload))


@dataclass(frozen=True, slots=True)
class SendKeepalive:
    """A primary keepalive; ``reply`` asks the client to answer at once."""

    wal_end: int
    reply: bool = False
    sent: int = SENT

    def encoded(self) -> bytes:
        """Return the bytes on the socket."""
        return wire.copy_data(wire.keepalive(self.wal_end, self.sent, reply=self.reply))


@dataclass(frozen=True, slots=True)
class SendRaw:
    """A CopyData message with any payload: recorded frames, or frames no server sends."""

    payload: bytes

    def encoded(self) -> bytes:
        """Return the bytes on the socket."""
        return wire.copy_data(self.payload)


Sending = XLogData | SendKeepalive | SendRaw


@dataclass(frozen=True, slots=True)
class SendPieces:
    """``of`` in several writes: after ``sizes[0]`` bytes, ``sizes[1]`` more …, then the rest, with
    ``gap`` seconds between them so that the client sees each piece alone.
    """

    of: Sending
    sizes: tuple[int, ...]
    gap: float = 0.01


@dataclass(frozen=True, slots=True)
class SendHalf:
    """The first ``keep`` bytes of ``of``, and never the rest. A `CutConnection` usually follows."""

    of: Sending
    keep: int


@dataclass(frozen=True, slots=True)
class PauseSeconds:
    """Silence for ``seconds``; ends early when the client leaves."""

    seconds: float


@dataclass(frozen=True, slots=True)
class AwaitConfirmed:
    """Waits until a status update confirmed (flushed) at least ``lsn``."""

    lsn: int
    within: float = 60.0


@dataclass(frozen=True, slots=True)
class AwaitFeedback:
    """Waits for ``count`` status updates since the last frame was sent, whatever they say."""

    count: int = 1
    within: float = 60.0


@dataclass(frozen=True, slots=True)
class ServerError:
    """An ErrorResponse. ERROR ends the stream and leaves the connection in command mode, FATAL also
    closes it, as the server does. As an answer to a query it is that query's result.
    """

    sqlstate: str
    text: str
    severity: str = "ERROR"
    detail: str = ""
    hint: str = ""
    context: str = ""

    def encoded(self) -> bytes:
        """Return the bytes on the socket."""
        return wire.error_response(
            self.severity,
            self.sqlstate,
            self.text,
            detail=self.detail,
            hint=self.hint,
            context=self.context,
        )


@dataclass(frozen=True, slots=True)
class CopyDone:
    """The server ends the stream in good order and waits for the client to do the same."""


@dataclass(frozen=True, slots=True)
class CutConnection:
    """The connection is gone without a word; ``reset``: with a TCP reset, not an orderly close."""

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
    """The steps of one START_REPLICATION. ``matches``, a regular expression, must be found in the
    command or the client gets an error: so a test also pins what was asked for.
    """

    steps: tuple[Step, ...] = field(default=())
    matches: str = ""
