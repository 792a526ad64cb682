"""The PostgreSQL protocol as the server sees it. Sans-IO.

It is written from the manual and shares no code with the connector's codec, so that each checks
the other.

Source: PostgreSQL manual, "Message Formats" and "Streaming Replication Protocol".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct, pack, unpack_from

# 2000-01-01 00:00 UTC in µs since 1970: the replication protocol counts from there.
EPOCH_US = 946_684_800_000_000

# Request codes instead of a protocol version.
CANCEL, SSL, GSS = 80877102, 80877103, 80877104

# Standby status update: type byte, three LSNs, the client's time, reply flag.
STATUS = Struct("!cQQQqB")
# A longer message means that the stream is out of step, not that it is long.
LARGEST_MESSAGE = 1 << 24


@dataclass(frozen=True, slots=True)
class StartupMessage:
    """A connection's first message: a protocol version or request code."""

    code: int
    parameters: dict[str, str]


@dataclass(frozen=True, slots=True)
class StandbyStatus:
    """One standby status update."""

    written: int
    flushed: int
    applied: int
    # The client's clock in µs since 1970 UTC.
    client_time: int
    reply_requested: bool
    # Time of arrival in seconds since the server's start.
    seconds: float


# --- messages of the server ---


def message(kind: bytes, body: bytes = b"") -> bytes:
    """Return one message with its type byte and length."""
    return kind + pack("!I", len(body) + 4) + body


def negotiate_version(minor: int, unknown: Sequence[str]) -> bytes:
    """Return NegotiateProtocolVersion with the options that are unknown."""
    body = pack("!II", minor, len(unknown)) + b"".join(_text(name) for name in unknown)
    return message(b"v", body)


def parameter_status(name: str, value: str) -> bytes:
    """Return ParameterStatus."""
    return message(b"S", _text(name) + _text(value))


def ready(status: str) -> bytes:
    """Return ReadyForQuery.

    ``status`` is I (idle), T (in a transaction) or E (in a failed transaction).
    """
    return message(b"Z", status.encode())


def row_description(columns: Sequence[tuple[str, int]]) -> bytes:
    """Return RowDescription of text columns given as (name, type OID)."""
    fields = (_text(name) + pack("!IhIhih", 0, 0, oid, -1, -1, 0) for name, oid in columns)
    return message(b"T", pack("!h", len(columns)) + b"".join(fields))


def data_row(values: Sequence[str | None]) -> bytes:
    """Return DataRow of text values, None for NULL."""
    body = pack("!h", len(values))
    for value in values:
        data = None if value is None else value.encode()
        body += pack("!i", -1) if data is None else pack("!i", len(data)) + data
    return message(b"D", body)


def command_complete(tag: str) -> bytes:
    """Return CommandComplete."""
    return message(b"C", _text(tag))


def error_response(severity: str, sqlstate: str, text: str, **more: str) -> bytes:
    """Return ErrorResponse; ``more`` are other fields by their letters."""
    fields = {"S": severity, "V": severity, "C": sqlstate, "M": text}
    fields |= {letter: value for letter, value in more.items() if value}
    return message(b"E", b"".join(k.encode() + _text(v) for k, v in fields.items()) + b"\0")


def copy_data(payload: bytes) -> bytes:
    """Return CopyData."""
    return message(b"d", payload)


# --- messages of the client ---


def parse_feedback(payload: bytes, seconds: float) -> StandbyStatus | None:
    """Return the standby status update in ``payload``, or None.

    None means another kind of message.

    Raises: ValueError for an update of the wrong length (PostgreSQL answers 08P01).
    """
    if payload[:1] != b"r":
        return None
    if len(payload) != STATUS.size:
        raise ValueError(f"standby status update of {len(payload)} bytes, must be {STATUS.size}")
    _, written, flushed, applied, time, reply = STATUS.unpack(payload)
    return StandbyStatus(written, flushed, applied, time + EPOCH_US, bool(reply), seconds)


class FrontendMessages:
    """Splits received bytes into messages.

    The first messages of a connection have no type byte.
    """

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._started = False

    def feed(self, data: bytes) -> Iterator[StartupMessage | tuple[bytes, bytes]]:
        """Yield complete messages: a StartupMessage first, then (type, body).

        Raises: ValueError for a length that no client sends.
        """
        self._buffer += data
        while True:
            head = 0 if not self._started else 1
            if len(self._buffer) < head + 4:
                return
            (size,) = unpack_from("!I", self._buffer, head)
            if not 4 <= size <= LARGEST_MESSAGE:
                raise ValueError(f"message length {size}")
            if len(self._buffer) < head + size:
                return
            kind, body = bytes(self._buffer[:head]), bytes(self._buffer[head + 4 : head + size])
            del self._buffer[: head + size]
            if self._started:
                yield kind, body
            else:
                startup = _startup(body)
                # After a TLS, GSS or cancel request the next message is a startup message again.
                self._started = startup.code not in (CANCEL, SSL, GSS)
                yield startup


def _startup(body: bytes) -> StartupMessage:
    if len(body) < 4:
        raise ValueError("startup packet ends early")
    (code,) = unpack_from("!I", body)
    if code in (CANCEL, SSL, GSS):
        return StartupMessage(code, {})
    words = [word.decode() for word in body[4:].rstrip(b"\0").split(b"\0")]
    return StartupMessage(code, dict(zip(words[::2], words[1::2], strict=False)))


def _text(value: str) -> bytes:
    return value.encode() + b"\0"
