"""CopyData payloads of the streaming replication protocol, both ways. Sans-IO.

A server sends XLogData ``w`` and keepalives ``k``; a client sends standby status updates ``r``. All
integers are big-endian; times on the wire are microseconds since 2000-01-01 UTC, here always since
1970. The functions come in pairs, so that a scripted server can be built from the same module.

Source: PostgreSQL manual, "Streaming Replication Protocol"; walsender.c.
"""

import struct
from typing import Never

import msgspec

from waltap.errors import DecodeError

__all__ = [
    "FrameError",
    "Keepalive",
    "StandbyStatus",
    "XLogData",
    "keepalive",
    "parse_server_frame",
    "parse_standby_status",
    "standby_status",
    "xlog_data",
]

PG_EPOCH_US = 946_684_800_000_000
_XLOG_HEAD = struct.Struct("!cQQq")
_KEEPALIVE = struct.Struct("!cQqB")
_STATUS = struct.Struct("!cQQQqB")


class FrameError(DecodeError):
    """A CopyData payload that is no frame of the replication protocol; offsets count from its
    first byte.
    """

    code = "WT-3002"
    remedy = (
        "The position was not moved: nothing is lost. Check that the server, or the proxy in front "
        "of it, speaks PostgreSQL's replication protocol; if it does, report the excerpt."
    )


class XLogData(msgspec.Struct, frozen=True, gc=False):
    """One payload of an output plugin. ``start`` is 0 where the frame stands for no WAL record;
    ``sent`` is the server's clock.
    """

    start: int
    end: int
    sent: int
    payload: bytes


class Keepalive(msgspec.Struct, frozen=True, gc=False):
    """A sign of life: ``end`` is where the server has read to; ``reply``: it wants a status now."""

    end: int
    sent: int
    reply: bool


class StandbyStatus(msgspec.Struct, frozen=True, gc=False):
    """What a client says it has: ``flushed`` alone moves a logical slot's confirmed position."""

    written: int
    flushed: int
    applied: int
    sent: int
    reply: bool


def parse_server_frame(data: bytes) -> XLogData | Keepalive:
    """Return what a server's CopyData payload says. Raises: FrameError."""
    kind = data[:1]
    if kind == b"w":
        size = _XLOG_HEAD.size
        if len(data) <= size:
            if len(data) < size:
                _fail(data, len(data), f"w: a header of {size} bytes", f"{len(data)} bytes")
            _fail(data, size, "w: a payload", "none")
        _, start, end, sent = _XLOG_HEAD.unpack_from(data)
        return XLogData(start, end, sent + PG_EPOCH_US, data[size:])
    if kind == b"k":
        if len(data) != _KEEPALIVE.size:
            found = f"{len(data)} bytes"
            _fail(data, min(len(data), _KEEPALIVE.size), f"k: {_KEEPALIVE.size} bytes", found)
        _, end, sent, reply = _KEEPALIVE.unpack(data)
        return Keepalive(end, sent + PG_EPOCH_US, _flag(data, reply, "k"))
    return _fail(data, 0, "frame type w or k", f"0x{data[0]:02x}" if data else "an empty frame")


def parse_standby_status(data: bytes) -> StandbyStatus:
    """Return what a client's CopyData payload says. Raises: FrameError."""
    if data[:1] != b"r":
        _fail(data, 0, "frame type r", f"0x{data[0]:02x}" if data else "an empty frame")
    if len(data) != _STATUS.size:
        found = f"{len(data)} bytes"
        _fail(data, min(len(data), _STATUS.size), f"r: {_STATUS.size} bytes", found)
    _, written, flushed, applied, sent, reply = _STATUS.unpack(data)
    return StandbyStatus(written, flushed, applied, sent + PG_EPOCH_US, _flag(data, reply, "r"))


def xlog_data(payload: bytes, *, start: int, end: int, sent: int) -> bytes:
    """Return the CopyData payload that carries one plugin message."""
    return _XLOG_HEAD.pack(b"w", start, end, sent - PG_EPOCH_US) + payload


def keepalive(*, end: int, sent: int, reply: bool) -> bytes:
    """Return the CopyData payload of a keepalive."""
    return _KEEPALIVE.pack(b"k", end, sent - PG_EPOCH_US, reply)


def standby_status(
    *, written: int, flushed: int, applied: int, sent: int, reply: bool = False
) -> bytes:
    """Return the CopyData payload of a standby status update; LSNs mean "last byte + 1"."""
    return _STATUS.pack(b"r", written, flushed, applied, sent - PG_EPOCH_US, reply)


def _flag(data: bytes, value: int, kind: str) -> bool:
    if value > 1:
        _fail(data, len(data) - 1, f"{kind}: reply flag 0 or 1", str(value))
    return value == 1


def _fail(data: bytes, offset: int, expected: str, found: str) -> Never:
    raise FrameError(
        "replication protocol", lsn=0, offset=offset, expected=expected, found=found, payload=data
    )
