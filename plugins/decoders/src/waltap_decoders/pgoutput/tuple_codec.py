"""Compiled readers of TupleData, with one careful reader as fallback.

Almost every frame is a row message. A function is generated for each form of row message (insert;
update or delete, with or without an old tuple) and number of columns. It reads the columns in
unrolled code with local variables and returns the message. It returns None for anything
unexpected. The careful reader then names the fault and its byte, or reads the row after all.
Neither accepts inconsistent bytes: a wrong length leads to a wrong column tag or past the end,
and reading must end exactly at the end.

Text values: the tuple is decoded once as Latin-1, which is a copy, and the values are slices of
that string. If the tuple is not ASCII, its values that are not ASCII are decoded again as UTF-8.
Text cannot contain NUL: one search in all values together finds it.

Source: PostgreSQL manual, "Logical Replication Message Formats", TupleData.
"""

import enum
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from waltap.base.generated import define
from waltap.changes.decode.message import Delete, Insert, OldTuple, Update
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, Tuple, Value
from waltap_decoders.pgoutput.payload import PayloadReader

RowMessage = Insert | Update | Delete


class TupleKind(enum.Enum):
    """Name the role of a tuple in its row message."""

    INSERTED = enum.auto()
    UPDATED = enum.auto()
    # Only the columns of the row's replica identity have values. A partition's identity may differ
    # from its root's, whose relation the message names.
    OLD_KEY = enum.auto()
    OLD_ROW = enum.auto()


# (frame LSN, payload from the first tuple's first column on, xid) → the message, or None.
RowReader = Callable[[int, bytes, int], RowMessage | None]

# Message type and first tuple's tag → form of row message. One more form, "update stale", is an
# update whose old tuple carries no information and is dropped.
FORMS = {
    b"IN": "insert",
    b"UN": "update",
    b"UK": "update key",
    b"UO": "update full",
    b"DK": "delete key",
    b"DO": "delete full",
}

# Above this many bytes the careful reader is better: it copies each value once, while a compiled
# reader copies the tuple three times first.
_HUGE_TUPLE = 1 << 20

_HEAD = struct.Struct(">BI").unpack_from
# Allows a tag to be read together with a length that is missing at the end. It is never taken for
# data, since reading must end before it.
_PAD = b"####"


def row_reader(relation: Relation, form: str) -> RowReader:
    """Return the compiled reader of one form of row message."""
    reader: RowReader = _maker(form, len(relation.columns))(relation, never_null(relation))
    return reader


def never_null(relation: Relation) -> tuple[bool, ...]:
    """Return for each column whether every row has a value of it.

    A primary key and the index of a replica identity have no NULL.
    """
    keyed = relation.identity in ("d", "i")
    return tuple(keyed and column.in_identity for column in relation.columns)


def read_tuple(payload: PayloadReader, relation: Relation, kind: TupleKind) -> Tuple:
    """Read the TupleData at the cursor and name every fault."""
    start = payload.at
    count = payload.number(2, "number of columns")
    if count != len(relation.columns):
        expected = f"{len(relation.columns)} columns, as {relation.name} has"
        payload.fail(expected, str(count), start)
    values: list[Value] = []
    data, required = payload.data, never_null(relation)
    for number, column in enumerate(relation.columns, 1):
        name = f"column {number} ({column.name})"
        tag = payload.number(1, f"tag of {name}")
        if tag == 0x6E:
            new = kind in (TupleKind.INSERTED, TupleKind.UPDATED)
            if new and required[number - 1]:
                expected = f"a value of {name}, which identifies the new row"
                payload.fail(expected, "NULL", payload.at - 1)
            values.append(ABSENT if kind is TupleKind.OLD_KEY else None)
        elif tag == 0x75:
            # A new row has its identifying values. Others may be missing: a row that an UPDATE
            # moved into a row filter arrives as INSERT.
            if kind is TupleKind.INSERTED and column.in_identity:
                expected = f"a value of {name}, which identifies the new row"
                payload.fail(expected, "the tag of one that did not change", payload.at - 1)
            values.append(UNCHANGED)
        elif tag == 0x74:
            start = payload.at
            size = payload.number(4, f"length of {name}")
            remaining = len(data) - payload.at
            if size > remaining:
                # The protocol's lengths are signed; show a negative one as such.
                found = str(size - (1 << 32) if size >> 31 else size)
                payload.fail(f"{name} within the {remaining} bytes left", f"length {found}", start)
            begin = payload.at
            payload.at = end = begin + size
            values.append(payload.text(begin, end, name))
            # PostgreSQL's text has no NUL, so the bytes are damaged.
            nul = data.find(0, begin, end)
            if nul >= 0:
                payload.fail(f"{name} without NUL", "NUL", nul)
        else:
            payload.fail(f"tag of {name} in n, u, t", f"0x{tag:02x}", payload.at - 1)
    return tuple(values)


@lru_cache(maxsize=4096)
def _maker(form: str, count: int) -> Callable[[Relation, tuple[bool, ...]], RowReader]:
    """Compile the maker of readers for ``form`` and ``count`` columns.

    Relations of one width share the code.
    """
    names: dict[str, Any] = {
        "Insert": Insert,
        "Update": Update,
        "Delete": Delete,
        "UNCHANGED": UNCHANGED,
        "ABSENT": ABSENT,
        "KEY": OldTuple.KEY,
        "FULL": OldTuple.FULL,
        "head": _HEAD,
        "PAD": _PAD,
        "faults": (struct.error, UnicodeDecodeError),
    }
    text = _source(form, count, names)  # made from numbers alone, no input in it
    define(text, f"pgoutput reader: {form} of {count} columns", names)
    maker: Callable[[Relation, tuple[bool, ...]], RowReader] = names["make"]
    return maker


def _source(form: str, count: int, names: dict[str, Any]) -> str:
    """Return the source of ``make(relation, required)``."""
    # Names in the generated code: t is the payload, s the same as Latin-1, e its end, p the
    # cursor, k a tag, n a length, a the start of a value, v and o new and old values.
    key = form in ("update key", "delete key")
    lines = ["  p = 0"]
    if form in ("insert", "update"):
        lines += _walk("v", count, key=False, begins=form == "insert")
    else:
        lines += _walk("o", count, key=key)
    prefixes = ["o" if " " in form else "v"]
    if form in ("update key", "update full", "update stale"):
        names["TAG"] = b"N" + struct.pack(">H", count)
        lines += ["  if t[p:p+3] != TAG: return None", "  p += 3"]
        lines += _walk("v", count, key=False)
        prefixes.append("v")
    new = "(" + "".join(f"v{i}," for i in range(count)) + ")"
    old = "(" + "".join(f"o{i}," for i in range(count)) + ")"
    kind = "KEY" if key else "FULL"
    result = {
        "insert": f"Insert(relation, lsn, {new}, xid)",
        "update": f"Update(relation, lsn, {new}, xid=xid)",
        "update stale": f"Update(relation, lsn, {new}, xid=xid)",
        "update key": f"Update(relation, lsn, {new}, {old}, {kind}, xid)",
        "update full": f"Update(relation, lsn, {new}, {old}, {kind}, xid)",
        "delete key": f"Delete(relation, lsn, {old}, {kind}, xid)",
        "delete full": f"Delete(relation, lsn, {old}, {kind}, xid)",
    }[form]
    head = ["def make(relation, required):", " def read(lsn, t, xid):", "  e = len(t)"]
    columns = [f"{prefix}{i}" for prefix in prefixes for i in range(count)]
    # The values of an old key are searched for NUL one by one: most of its columns are ABSENT.
    everything = "".join(f"{{{name}}}" for name in columns if not key or name[0] == "v")
    return "\n".join(
        [
            *head,
            f"  if e > {_HUGE_TUPLE}: return None",
            "  s = t.decode('latin-1')",
            "  t += PAD",
            "  try:",
        ]
        + [f" {line}" for line in lines]
        + ["   if p != e: return None"]
        + [f"   if '\\0' in f\"{everything}\": return None"]
        + ["   if not s.isascii():", "    pass  # a table may have no columns"]
        + [
            f"    if {name}.__class__ is str and not {name}.isascii():"
            f" {name} = {name}.encode('latin-1').decode()"
            for name in columns
        ]
        + ["  except faults: return None", f"  return {result}", " return read"]
    )


def _walk(prefix: str, count: int, *, key: bool, begins: bool = False) -> list[str]:
    """Return the lines that split a tuple of text values at ``p``.

    The values become local variables.
    """
    if key:
        return _walk_key(prefix, count)
    lines = []
    for i in range(count):
        lines += [
            "  k, n = head(t, p)",
            *_text(f"{prefix}{i}"),
            *_null(prefix, i),
            # A new row that lacks a value is rare and may be a fault: `read_tuple` decides.
            *([] if begins else [f"  elif k == 117: {prefix}{i} = UNCHANGED; p += 1"]),
            "  else: return None",
        ]
    return lines


def _walk_key(prefix: str, count: int) -> list[str]:
    """Return lines that split an old key, mostly NULLs."""
    if not count:
        return []
    lines = ["  " + " = ".join(f"{prefix}{i}" for i in range(count)) + " = ABSENT", "  while 1:"]
    for i in range(count):
        rest = count - i
        lines += [
            "   k, n = head(t, p)",
            *(f" {line}" for line in _text(f"{prefix}{i}")),
            f"    if '\\0' in {prefix}{i}: return None",
            "   elif k == 110:",
            f"    if t[p:p+{rest}] == {b'n' * rest!r}: p += {rest}; break",
            "    p += 1",
            f"   elif k == 117: {prefix}{i} = UNCHANGED; p += 1",
            "   else: return None",
        ]
    return [*lines, "   break"]


def _text(name: str) -> list[str]:
    """Return the lines that read a value, if the tag says so."""
    return ["  if k == 116:", "   a = p + 5", "   p = a + n", f"   {name} = s[a:p]"]


def _null(prefix: str, i: int) -> list[str]:
    if prefix == "v":
        return [
            "  elif k == 110:",
            f"   if required[{i}]: return None",
            f"   {prefix}{i} = None; p += 1",
        ]
    return [f"  elif k == 110: {prefix}{i} = None; p += 1"]
