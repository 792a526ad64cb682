"""One history of changes in the words of each output plugin, so that one table of cases is for every decoder.

A history is a list of steps: ``("B",)``, ``("I", new)``, ``("U", new, old)``, ``("D", old)``, ``("C",)``. Rows hold
PostgreSQL's text, None, UNCHANGED and ABSENT, as decoders give them; each plugin has a form of its own for them.
Shares no code with the decoders.
"""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tests.harness import decoderbufs_wire, pgoutput_wire
from tests.harness.captures import decoderbufs, pgoutput, wal2json

from waltap.changes.decode import ABSENT, UNCHANGED, Column, DataType, Decoder, Relation, TypeKind
from waltap_testing.recording import StaticCatalogue

LSN, OID, XID = 0x65B_0000, 16384, 7
FORMS = {
    16: "bool",
    17: "bytea",
    20: "int8",
    23: "int4",
    25: "text",
    1700: "numeric",
    70000: "mood",
}
"""Type OID → name of the types that every plugin has its own form for."""
Step = tuple[Any, ...]
STAMP = "2026-11-20 06:55:03.5+00"


def table(columns: Iterable[tuple[str, int, bool]], identity: str = "d") -> Relation:
    """Return ``public.t``; columns are name, type and whether the primary key has them."""
    given = list(columns)
    return Relation(
        oid=OID,
        schema="public",
        table="t",
        identity=identity,
        primary_key=tuple(name for name, _, key in given if key),
        columns=tuple(
            Column(
                name=name,
                type_oid=oid,
                in_identity=key or identity == "f",
                number=n,
                data_type=_data_type(oid),
            )
            for n, (name, oid, key) in enumerate(given, 1)
        ),
    )


def _data_type(oid: int) -> DataType:
    kind = TypeKind.ENUM if oid == 70000 else TypeKind.BASE
    return DataType(oid=oid, schema="pg_catalog", name=FORMS.get(oid, "text"), kind=kind)


class Known(StaticCatalogue):
    """A catalogue with one table."""

    def __init__(self, relation: Relation) -> None:
        super().__init__()
        self.now = relation

    def relation(self, schema: str, table: str) -> Relation | None:
        return self.now if table == self.now.table else None


def frames(plugin: str, relation: Relation, steps: Sequence[Step]) -> list[tuple[int, bytes]]:
    return [(LSN, payload) for payload in WIRES[plugin][1](relation, steps)]


# --- pgoutput ------------------------------------------------------------------------------------


def _pgoutput(relation: Relation, steps: Sequence[Step]) -> list[bytes]:
    columns = [(c.name, c.type_oid, -1, c.in_identity) for c in relation.columns]
    announced = pgoutput_wire.relation(OID, "public", "t", columns, relation.identity)
    mark = b"O" if relation.identity == "f" else b"K"
    made: dict[str, Callable[..., bytes]] = {
        "B": lambda: pgoutput_wire.begin(100, xid=XID),
        "C": lambda: pgoutput_wire.commit(100, 110),
        "I": lambda new: pgoutput_wire.insert(OID, new),
        "U": lambda new, old: pgoutput_wire.update(OID, new, old or None, mark),
        "D": lambda old: pgoutput_wire.delete(OID, old, mark),
    }
    found = [made[kind](*rows) for kind, *rows in steps]
    begun = next((n + 1 for n, payload in enumerate(found) if payload[:1] == b"B"), None)
    return found if begun is None else [*found[:begun], announced, *found[begun:]]


# --- wal2json ------------------------------------------------------------------------------------


def _json(oid: int, text: str | None) -> str:
    if text is None:
        return "null"
    if oid == 16:
        return "true" if text == "t" else "false"
    if oid in (20, 23, 1700):
        return text
    return json.dumps(text[2:] if oid == 17 else text, ensure_ascii=False)


def _sent(relation: Relation, row: Sequence[Any]) -> list[tuple[Column, str]]:
    return [
        (column, _json(column.type_oid, value))
        for column, value in zip(relation.columns, row, strict=True)
        if value is not ABSENT and value is not UNCHANGED
    ]


def _identity(relation: Relation, new: Sequence[Any], old: Sequence[Any]) -> Sequence[Any]:
    """Return the identity of an update, which wal2json sends whether or not it changed."""
    if old:
        return old
    pairs = zip(relation.columns, new, strict=True)
    return [value if column.in_identity else ABSENT for column, value in pairs]


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _format_2(relation: Relation, steps: Sequence[Step]) -> list[bytes]:
    head = f'"xid":{XID},"timestamp":"{STAMP}","origin":0,"lsn":"0/10"'
    keys = ",".join(f'{{"name":{_quoted(n)},"type":"text"}}' for n in relation.primary_key or ())

    def listed(name: str, row: Sequence[Any]) -> str:
        columns = ",".join(
            f'{{"name":{_quoted(column.name)},"typeoid":{column.type_oid},"value":{value}}}'
            for column, value in _sent(relation, row)
        )
        return f',"{name}":[{columns}]'

    found = []
    for kind, *rows in steps:
        text = f'{{"action":"{kind}",{head}'
        if kind in "BC":
            text += ',"nextlsn":"0/20"'
        else:
            text += f',"schema":"public","table":"t","pk":[{keys}]'
        if kind in "IU":
            text += listed("columns", rows[0])
        if kind == "U":
            text += listed("identity", _identity(relation, *rows))
        if kind == "D":
            text += listed("identity", rows[0])
        found.append((text + "}").encode())
    return found


def _change(relation: Relation, kind: str, *rows: Sequence[Any]) -> str:
    names = [_quoted(name) for name in relation.primary_key or ()]
    text = (
        f'{{"kind":"{dict(I="insert", U="update", D="delete")[kind]}","schema":"public","table":"t"'
    )
    kinds = ",".join(['"text"'] * len(names))
    text += f',"pk":{{"pknames":[{",".join(names)}],"pktypes":[{kinds}]}}'

    def listed(row: Sequence[Any], prefix: str, *, old: bool = False) -> str:
        columns = [(c, v) for c, v in _sent(relation, row) if not old or v != "null"]
        parts = (
            ("names", [_quoted(column.name) for column, _ in columns]),
            ("typeoids", [str(column.type_oid) for column, _ in columns]),
            ("values", [value for _, value in columns]),
        )
        return ",".join(f'"{prefix}{name}":[{",".join(items)}]' for name, items in parts)

    if kind in "IU":
        text += "," + listed(rows[0], "column")
    if kind != "I":
        old = rows[0] if kind == "D" else _identity(relation, *rows)
        text += ',"oldkeys":{' + listed(old, "key", old=True) + "}"
    return text + "}"


OPENER = f'{{"xid":{XID},"nextlsn":"0/20","timestamp":"{STAMP}","origin":0,"change":['


def _format_1(relation: Relation, steps: Sequence[Step]) -> list[bytes]:
    return [b"".join(_chunks(relation, steps))]


def _chunks(relation: Relation, steps: Sequence[Step]) -> list[bytes]:
    changes = [_change(relation, *step) for step in steps[1:-1]]
    rows = [("," if n else "") + change for n, change in enumerate(changes)]
    return [text.encode() for text in (OPENER, *rows, "]}")]


# --- decoderbufs ---------------------------------------------------------------------------------


def _datum(column: Column, value: Any) -> bytes:
    name, oid = column.name, column.type_oid
    if not re.fullmatch("[a-z_][a-z0-9_]*", name):
        name = '"' + name.replace('"', '""') + '"'
    if value is None or value is ABSENT:
        return decoderbufs_wire.datum(name, oid)
    if value is UNCHANGED:
        return decoderbufs_wire.datum(name, oid, decoderbufs_wire.MISSING)
    write: dict[int, Callable[[str], bytes]] = {
        16: lambda text: decoderbufs_wire.boolean(text == "t"),
        17: lambda text: decoderbufs_wire.raw(bytes.fromhex(text[2:])),
        20: lambda text: decoderbufs_wire.int64(int(text)),
        23: lambda text: decoderbufs_wire.int32(int(text)),
        70000: decoderbufs_wire.raw,
    }
    return decoderbufs_wire.datum(name, oid, write.get(oid, decoderbufs_wire.text)(value))


def _decoderbufs(relation: Relation, steps: Sequence[Step]) -> list[bytes]:
    operations = dict(zip("IUDBC", range(5), strict=True))
    key = relation.primary_key or ()
    info = [
        decoderbufs_wire.type_info("text", optional=c.name not in key) for c in relation.columns
    ]

    def data(row: Sequence[Any]) -> list[bytes]:
        return (
            [_datum(c, value) for c, value in zip(relation.columns, row, strict=True)]
            if row
            else []
        )

    found = []
    for kind, *rows in steps:
        new = data(rows[0]) if kind in "IU" else []
        old = data(rows[-1]) if kind in "UD" else []
        name = None if kind in "BC" else decoderbufs_wire.TABLE
        found.append(
            decoderbufs_wire.message(
                operations[kind], table=name, new=new, old=old, info=info if new else []
            )
        )
    return found


WIRES: dict[
    str, tuple[Callable[..., Decoder], Callable[[Relation, Sequence[Step]], list[bytes]]]
] = {
    "pgoutput": (pgoutput, _pgoutput),
    "wal2json 2": (wal2json, _format_2),
    "wal2json 1": (lambda **more: wal2json("1", **more), _format_1),
    "wal2json chunks": (lambda **more: wal2json("1", chunks=True, **more), _chunks),
    "decoderbufs": (decoderbufs, _decoderbufs),
}
"""Plugin and format → what makes its decoder, and what writes a history."""
