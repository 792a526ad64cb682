"""decoderbufs' messages, written from protobuf's encoding guide. Shares no code with the decoder."""

import struct
from collections.abc import Iterable

INSERT, UPDATE, DELETE, BEGIN, COMMIT = range(5)
TABLE = "public.t"


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def block(field: int, data: bytes | str) -> bytes:
    body = data.encode() if isinstance(data, str) else data
    return varint(field << 3 | 2) + varint(len(body)) + body


def datum(name: str, oid: int, value: bytes = b"") -> bytes:
    """``value``: the field of the oneof, encoded; empty for NULL."""
    return block(1, name) + number(2, oid) + value


def int32(value: int) -> bytes:
    return number(3, value)


def int64(value: int) -> bytes:
    return number(4, value)


def float32(value: float) -> bytes:
    return varint(5 << 3 | 5) + struct.pack("<f", value)


def float64(value: float, field: int = 6) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


def boolean(value: bool) -> bytes:
    return number(7, value)


def text(value: str) -> bytes:
    return block(8, value)


def raw(value: bytes | str) -> bytes:
    return block(9, value)


def point(x: float, y: float) -> bytes:
    return block(10, float64(x, 1) + float64(y, 2))


MISSING = number(11, 1)


def type_info(modifier: str = "integer", *, optional: bool = True) -> bytes:
    return block(1, modifier) + number(2, optional)


def message(
    op: int,
    *,
    table: str | None = None,
    new: Iterable[bytes] = (),
    old: Iterable[bytes] = (),
    info: Iterable[bytes] | None = None,
    xid: int = 7,
    time: int = 5,
) -> bytes:
    """Return one frame; ``info`` None: as many as ``new``."""
    listed = list(new)
    infos = [type_info() for _ in listed] if info is None else list(info)
    head = number(1, xid) + number(2, time) + (block(3, table) if table is not None else b"")
    parts = [block(5, d) for d in listed] + [block(6, d) for d in old]
    return head + number(4, op) + b"".join(parts) + b"".join(block(7, i) for i in infos)


def begin(**more: int) -> bytes:
    return message(BEGIN, **more)  # type: ignore[arg-type]


def commit(**more: int) -> bytes:
    return message(COMMIT, **more)  # type: ignore[arg-type]


def insert(*new: bytes, table: str = TABLE, **more: object) -> bytes:
    return message(INSERT, table=table, new=new, **more)  # type: ignore[arg-type]
