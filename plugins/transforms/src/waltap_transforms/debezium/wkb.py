"""Geometries as well-known binary (WKB) and as extended WKB of PostGIS.

The extended form may have an SRID. Source: OGC 06-103r4, section 8.2; PostGIS manual, "Extended forms".
"""

import struct

from waltap.encoders.format.record_transform import RecordUnfit

__all__ = ["is_extended", "swapped", "with_srid", "without_srid"]

# Flags in the type of extended WKB: an SRID follows; points have Z; points have M.
SRID = 0x20000000
MEASURES = (0x80000000, 0x40000000)
POINT, LINE, POLYGON = 1, 2, 3
# Type of a collection of equal parts → type of its parts.
PARTS = {4: POINT, 5: LINE, 6: POLYGON}
COLLECTION = 7


def is_extended(wkb: bytes) -> bool:
    """Return whether ``wkb`` contains an SRID."""
    return len(wkb) >= 5 and bool(_type(wkb) & SRID)


def with_srid(wkb: bytes, srid: int) -> bytes:
    """Insert an SRID into plain ``wkb``.

    Raises: RecordUnfit if ``wkb`` is too short.
    """
    order = _order(wkb)
    kind = _type(wkb) | SRID
    return wkb[:1] + struct.pack(f"{order}Ii", kind, srid) + wkb[5:]


def without_srid(wkb: bytes) -> bytes:
    """Remove the SRID from extended ``wkb``.

    Raises: RecordUnfit if ``wkb`` is too short.
    """
    order = _order(wkb)
    # Byte order, type and SRID.
    if len(wkb) < 9:
        raise RecordUnfit("a geometry ends early")
    return wkb[:1] + struct.pack(f"{order}I", _type(wkb) & ~SRID) + wkb[9:]


def swapped(wkb: bytes) -> bytes:
    """Swap the first two ordinates of every point of ``wkb``.

    Bytes after the geometry are removed. Raises: RecordUnfit for bytes that are not a geometry.
    """
    out = bytearray(wkb)
    try:
        end = _geometry(out, 0)
    except struct.error as cause:
        raise RecordUnfit("a geometry ends early") from cause
    return bytes(out[:end])


def _order(wkb: bytes) -> str:
    if len(wkb) < 5:
        raise RecordUnfit("a geometry ends early")
    return "<" if wkb[0] == 1 else ">"


def _type(wkb: bytes) -> int:
    (kind,) = struct.unpack_from(f"{_order(wkb)}I", wkb, 1)
    return int(kind)


def _geometry(data: bytearray, at: int) -> int:
    """Swap the points of the geometry at ``at``, and return its end."""
    order, kind = _head(data, at)
    at += 5 + (4 if kind & SRID else 0)
    ordinates = 2 + sum(bool(kind & flag) for flag in MEASURES)
    base = kind & 0xFF
    if base in (POINT, LINE, POLYGON):
        return _simple(data, at, base, order, ordinates)
    if base not in PARTS and base != COLLECTION:
        raise RecordUnfit(f"a geometry has the unknown type {base}")
    (count,) = struct.unpack_from(f"{order}I", data, at)
    at += 4
    for _ in range(count):
        if base == COLLECTION:
            at = _geometry(data, at)
        else:
            # Each part has its own byte order; its type is known.
            inner, _kind = _head(data, at)
            at = _simple(data, at + 5, PARTS[base], inner, ordinates)
    return at


def _head(data: bytearray, at: int) -> tuple[str, int]:
    (mark,) = struct.unpack_from("B", data, at)
    order = "<" if mark == 1 else ">"
    (kind,) = struct.unpack_from(f"{order}I", data, at + 1)
    return order, int(kind)


def _simple(data: bytearray, at: int, base: int, order: str, ordinates: int) -> int:
    if base == POINT:
        return _points(data, at, 1, ordinates)
    (count,) = struct.unpack_from(f"{order}I", data, at)
    at += 4
    if base == LINE:
        return _points(data, at, count, ordinates)
    for _ in range(count):
        (points,) = struct.unpack_from(f"{order}I", data, at)
        at = _points(data, at + 4, points, ordinates)
    return at


def _points(data: bytearray, at: int, count: int, ordinates: int) -> int:
    width = 8 * ordinates
    # A damaged count must not make a loop of four billion steps.
    if at + count * width > len(data):
        raise RecordUnfit("a geometry ends early")
    for place in range(at, at + count * width, width):
        first, second = data[place : place + 8], data[place + 8 : place + 16]
        data[place : place + 16] = second + first
    return at + count * width
