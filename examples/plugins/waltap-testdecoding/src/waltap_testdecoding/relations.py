"""Relations by the columns that lines show: test_decoding announces none."""

from collections.abc import Iterable
from typing import Any

import msgspec

from waltap.changes.decode import ABSENT, Column, DecoderContext, OldTuple, Relation, Tuple, Value
from waltap_testdecoding.grammar import Pairs, Unexpected


class Relations:
    """Remembers one object per shape of a table: codecs are compiled per object."""

    def __init__(self, context: DecoderContext) -> None:
        self._context, self._xid = context, 0
        self._latest: dict[tuple[str, str], Relation] = {}
        self._shapes: dict[tuple[Any, ...], Relation] = {}
        self._evidence: dict[tuple[str, str], object] = {}
        self._checked: set[tuple[str, str]] = set()

    def began(self, xid: int) -> None:
        """Begin a transaction: a name may mean another table now."""
        self._xid, names = xid, self._context.name_resolution
        if names is not None and names.due(xid):
            self._checked.clear()

    def latest(self, schema: str, table: str, pairs: Pairs | None = None) -> Relation:
        """Return the relation as last seen, else as it was then, else as a row shows it."""
        name, context = (schema, table), self._context
        if name not in self._checked and context.name_resolution is not None:
            self._checked.add(name)
            evidence = context.name_resolution.of(schema, table, self._xid)
            if self._evidence.setdefault(name, evidence) != evidence:
                self._evidence[name] = evidence
                self._latest.pop(name, None)
                self._shapes = {key: one for key, one in self._shapes.items() if key[:2] != name}
        relation = self._latest.get(name)
        if relation is None and context.relation_at is not None:
            relation = context.relation_at(schema, table, self._xid, ())
        elif relation is None:
            relation = context.catalogue.relation(schema, table)
        if relation is None:  # it is gone
            return Relation(oid=0, schema=schema, table=table, columns=_columns(pairs or ()))
        self._latest[name] = relation
        return relation

    # [shape]
    def shape(self, schema: str, table: str, pairs: Pairs) -> Relation:
        """Return the relation with exactly the columns of a line."""
        key = (schema, table, tuple((name, kind) for name, kind, _ in pairs))
        self.latest(schema, table)
        shape = self._shapes.get(key)
        if shape is None:
            self._latest.pop((schema, table), None)  # it changed: ask the catalogue again
            relation = self.latest(schema, table)
            known = {column.name: column for column in relation.columns}
            columns = tuple(known.get(column.name) or column for column in _columns(pairs))
            shape = msgspec.structs.replace(relation, columns=columns)
            self._shapes[key] = shape = relation if shape.same_shape(relation) else shape
        self._latest[schema, table] = shape
        return shape

    # [/shape]


def _columns(pairs: Iterable[tuple[str, str, Value]]) -> tuple[Column, ...]:
    return tuple(Column(name=name, type_oid=25, type_text=kind) for name, kind, _ in pairs)


# [old]
def old_tuple(relation: Relation, pairs: Pairs) -> tuple[Tuple, OldTuple]:
    """Return an old tuple: the line leaves out its NULLs, and without FULL all but the key."""
    full = relation.identity == "f"
    values = {name: value for name, _, value in pairs}
    if strange := values.keys() - {column.name for column in relation.columns}:
        raise Unexpected(0, f"columns of {relation.name}", ", ".join(sorted(strange)))
    rest = None if full else ABSENT
    old = tuple(values.get(column.name, rest) for column in relation.columns)
    return old, OldTuple.FULL if full else OldTuple.KEY


# [/old]
