"""pgoutput messages, written from the manual's chapter "Logical Replication Message Formats".

Shares no code with the decoder. Times are given as on the wire.
"""

import struct
from collections.abc import Iterable, Sequence

from waltap.changes.decode import ABSENT, UNCHANGED

UNIX_OF_2000 = 946_684_800_000_000

Cell = object
"""str (text), bytes (send format, which waltap never asks for), None, UNCHANGED, or ABSENT (written as NULL)."""


def tuple_data(cells: Sequence[Cell]) -> bytes:
    out = struct.pack("!H", len(cells))
    for cell in cells:
        if cell is None or cell is ABSENT:
            out += b"n"
        elif cell is UNCHANGED:
            out += b"u"
        else:
            kind, data = (b"b", cell) if isinstance(cell, bytes) else (b"t", str(cell).encode())
            out += kind + struct.pack("!i", len(data)) + data
    return out


def begin(commit_lsn: int, time: int = 0, xid: int = 1) -> bytes:
    return b"B" + struct.pack("!QqI", commit_lsn, time, xid)


def commit(commit_lsn: int, end_lsn: int, time: int = 0) -> bytes:
    return b"C\0" + struct.pack("!QQq", commit_lsn, end_lsn, time)


def origin(lsn: int, name: str) -> bytes:
    return b"O" + struct.pack("!Q", lsn) + name.encode() + b"\0"


def relation(
    oid: int,
    schema: str,
    table: str,
    columns: Iterable[tuple[str, int, int, bool]],
    identity: str = "d",
    xid: int | None = None,
) -> bytes:
    """``columns``: name, type OID, typmod, part of the replica identity."""
    listed = list(columns)
    head = struct.pack("!I", oid) + schema.encode() + b"\0" + table.encode() + b"\0"
    body = b"".join(
        bytes([key]) + name.encode() + b"\0" + struct.pack("!Ii", type_oid, typmod)
        for name, type_oid, typmod, key in listed
    )
    return b"R" + _xid(xid) + head + identity.encode() + struct.pack("!H", len(listed)) + body


def type_(oid: int, schema: str, name: str, xid: int | None = None) -> bytes:
    return (
        b"Y" + _xid(xid) + struct.pack("!I", oid) + schema.encode() + b"\0" + name.encode() + b"\0"
    )


def insert(oid: int, new: Sequence[Cell], xid: int | None = None) -> bytes:
    return b"I" + _xid(xid) + struct.pack("!I", oid) + b"N" + tuple_data(new)


def update(
    oid: int,
    new: Sequence[Cell],
    old: Sequence[Cell] | None = None,
    mark: bytes = b"K",
    xid: int | None = None,
) -> bytes:
    before = b"" if old is None else mark + tuple_data(old)
    return b"U" + _xid(xid) + struct.pack("!I", oid) + before + b"N" + tuple_data(new)


def delete(oid: int, old: Sequence[Cell], mark: bytes = b"K", xid: int | None = None) -> bytes:
    return b"D" + _xid(xid) + struct.pack("!I", oid) + mark + tuple_data(old)


def truncate(oids: Sequence[int], flags: int = 0, xid: int | None = None) -> bytes:
    return b"T" + _xid(xid) + struct.pack(f"!IB{len(oids)}I", len(oids), flags, *oids)


def message(
    prefix: str, content: bytes, *, transactional: bool, lsn: int = 1, xid: int | None = None
) -> bytes:
    head = struct.pack("!BQ", transactional, lsn) + prefix.encode() + b"\0"
    return b"M" + _xid(xid) + head + struct.pack("!I", len(content)) + content


def stream_start(xid: int, *, first: bool) -> bytes:
    return b"S" + struct.pack("!IB", xid, first)


def stream_stop() -> bytes:
    return b"E"


def stream_commit(xid: int, commit_lsn: int, end_lsn: int) -> bytes:
    return b"c" + struct.pack("!IBQQq", xid, 0, commit_lsn, end_lsn, 0)


def stream_abort(xid: int, subxid: int, lsn: int | None = None) -> bytes:
    tail = b"" if lsn is None else struct.pack("!Qq", lsn, 0)
    return b"A" + struct.pack("!II", xid, subxid) + tail


def begin_prepare(lsn: int, end: int, xid: int, gid: str, time: int = 0) -> bytes:
    return b"b" + struct.pack("!QQqI", lsn, end, time, xid) + gid.encode() + b"\0"


def prepare(lsn: int, end: int, xid: int, gid: str, time: int = 0, letter: bytes = b"P") -> bytes:
    return letter + b"\0" + struct.pack("!QQqI", lsn, end, time, xid) + gid.encode() + b"\0"


def stream_prepare(lsn: int, end: int, xid: int, gid: str, time: int = 0) -> bytes:
    return prepare(lsn, end, xid, gid, time, b"p")


def commit_prepared(lsn: int, end: int, xid: int, gid: str, time: int = 0) -> bytes:
    return prepare(lsn, end, xid, gid, time, b"K")


def rollback_prepared(
    prepare_end: int, end: int, xid: int, gid: str, prepared: int = 0, rolled_back: int = 0
) -> bytes:
    numbers = struct.pack("!QQqqI", prepare_end, end, prepared, rolled_back, xid)
    return b"r\0" + numbers + gid.encode() + b"\0"


def _xid(xid: int | None) -> bytes:
    return b"" if xid is None else struct.pack("!I", xid)
