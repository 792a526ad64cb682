"""The relations that a session has announced, and the compiled readers of their rows.

A session has one scope, and each transaction that is streamed in progress has its own beside it:
the server announces relations anew inside a streamed transaction, as that transaction sees them.
When it commits, its relations become the session's, since the server then counts them as announced
(``cleanup_rel_sync_cache`` in pgoutput.c); when it aborts they are forgotten.
"""

from collections.abc import Callable
from dataclasses import dataclass

from waltap.decode.relation import Column, Relation
from waltap_decoders.pgoutput.payload import Payload
from waltap_decoders.pgoutput.tuple_codec import RowReader

__all__ = ["Announced", "RelationCache", "Scope"]

_VERSIONS_KEPT = 4


@dataclass(frozen=True, slots=True)
class Announced:
    """A relation in force in a scope; ``order`` counts announcements in the session."""

    relation: Relation
    captured: bool
    order: int


class Scope:
    """Relations by OID, and readers of row messages by the first eight bytes of the message as it
    is outside a stream: type, relation, first mark, number of columns.
    """

    __slots__ = ("readers", "relations")

    def __init__(self) -> None:
        self.relations: dict[int, Announced] = {}
        self.readers: dict[bytes, RowReader] = {}

    def announce(self, announced: Announced) -> None:
        """Put a relation in force; readers of its former version go."""
        oid = announced.relation.oid
        known = self.relations.get(oid)
        self.relations[oid] = announced
        if known is not None and known.relation is not announced.relation:
            mark = oid.to_bytes(4, "big")
            for prefix in [prefix for prefix in self.readers if prefix[1:5] == mark]:
                del self.readers[prefix]


class RelationCache:
    """Scopes and versions of one session.

    ``identities`` are the replica identity letters that the plugin may send; ``captures`` tells for
    (schema, table) whether changes are wanted; ``describe`` completes a relation from the
    catalogue, which a Relation message does not carry: it is asked at every announcement of a
    captured relation, because the server also announces one again when only a default, a key or
    nullability changed.
    """

    def __init__(
        self,
        identities: str,
        captures: Callable[[str, str], bool] | None,
        describe: Callable[[Relation], Relation] | None = None,
    ) -> None:
        self.session = Scope()
        self.streams: dict[int, Scope] = {}
        self._identities, self._captures, self._describe = identities, captures, describe
        self._types: dict[int, str] = {}
        self._versions: dict[int, dict[bytes, Relation]] = {}
        self._order = 0

    def read_type(self, payload: Payload) -> None:
        """Take in a Type message, the cursor being behind its xid."""
        oid = payload.number(4, "type OID")
        schema = payload.string("schema") or "pg_catalog"
        name = payload.string("type name")
        payload.end()
        text = f"{schema}.{name}"
        if self._types.get(oid, text) != text:
            self._versions.clear()
        self._types[oid] = text

    def read_relation(self, payload: Payload, scope: Scope) -> Relation:
        """Take in a Relation message, the cursor being behind its xid.

        A relation announced again as it was is the same object.
        """
        wire = payload.data[payload.at :]
        oid = int.from_bytes(wire[:4], "big")
        self._order += 1
        versions = self._versions.setdefault(oid, {})
        relation = versions.get(wire)
        if relation is None:
            relation = self._parse(payload)
            if len(versions) == _VERSIONS_KEPT:
                del versions[next(iter(versions))]
            versions[wire] = relation
        captures = self._captures
        captured = captures is None or captures(relation.schema, relation.table)
        if captured and self._describe is not None:
            described = self._describe(relation)
            if not relation.same_shape(described):
                relation = versions[wire] = described
        scope.announce(Announced(relation, captured, self._order))
        return relation

    def promote(self, xid: int) -> None:
        """Make the relations of the streamed transaction ``xid`` the session's."""
        scope = self.streams.pop(xid)
        for oid, announced in scope.relations.items():
            known = self.session.relations.get(oid)
            if known is None or known.order < announced.order:
                self.session.announce(announced)

    def _parse(self, payload: Payload) -> Relation:
        oid = payload.number(4, "relation OID")
        schema = payload.string("namespace") or "pg_catalog"
        table = payload.string("relation name")
        identity = chr(payload.number(1, "replica identity"))
        if identity not in self._identities:
            expected = f"replica identity in {','.join(self._identities)}"
            payload.fail(expected, f"0x{ord(identity):02x}", payload.at - 1)
        count = payload.number(2, "number of columns")
        columns: dict[str, Column] = {}
        for number in range(1, count + 1):
            flags = payload.number(1, f"flags of column {number}")
            if flags > 1:
                payload.fail(f"flags of column {number} 0 or 1", str(flags), payload.at - 1)
            start = payload.at
            name = payload.string(f"name of column {number}")
            if name in columns:
                payload.fail(f"column {number} with a name of its own", f"{name} again", start)
            type_oid = payload.number(4, f"type of column {number}")
            typmod = payload.number(4, f"typmod of column {number}")
            columns[name] = Column(
                name=name,
                type_oid=type_oid,
                typmod=typmod - (1 << 32) if typmod >> 31 else typmod,
                in_identity=flags == 1,
                type_text=self._types.get(type_oid),
            )
        payload.end()
        return Relation(
            oid=oid, schema=schema, table=table, columns=tuple(columns.values()), identity=identity
        )
