"""Relations by the columns that lines show: test_decoding announces none."""

import msgspec

from waltap.changes.decode import ABSENT, Catalogue, Column, OldTuple, Relation, Tuple
from waltap_testdecoding.grammar import Pairs, Unexpected


class Relations:
    """Remembers one object per shape of a table: codecs are compiled per object."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._catalogue = catalogue
        self._latest: dict[tuple[str, str], Relation] = {}
        self._shapes: dict[object, Relation] = {}

    def latest(self, schema: str, table: str) -> Relation:
        """Return the relation as last seen, else as the catalogue has it now."""
        relation = self._latest.get((schema, table)) or self._catalogue.relation(schema, table)
        if relation is None:
            raise Unexpected(6, "a table of the catalogue", f"{schema}.{table}")
        self._latest[schema, table] = relation
        return relation

    # [shape]
    def shape(self, schema: str, table: str, pairs: Pairs) -> Relation:
        """Return the relation with exactly the columns of a line."""
        key = (schema, table, tuple((name, kind) for name, kind, _ in pairs))
        shape = self._shapes.get(key)
        if shape is None:
            self._latest.pop((schema, table), None)  # it changed: ask the catalogue again
            relation = self.latest(schema, table)
            known = {column.name: column for column in relation.columns}
            columns = tuple(
                known.get(name) or Column(name=name, type_oid=25, type_text=kind)
                for name, kind, _ in pairs
            )
            shape = msgspec.structs.replace(relation, columns=columns)
            self._shapes[key] = shape = relation if shape.same_shape(relation) else shape
        self._latest[schema, table] = shape
        return shape

    # [/shape]


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
