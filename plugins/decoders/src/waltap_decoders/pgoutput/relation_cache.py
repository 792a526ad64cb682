"""The relations that a session has announced, and the compiled readers of their rows.

A session has one scope, and each transaction that is streamed in progress has its own beside it:
the server announces relations anew inside a streamed transaction, as that transaction sees them.
When it commits, its relations become the session's, since the server then counts them as announced
(``cleanup_rel_sync_cache`` in pgoutput.c); when it aborts they are forgotten.
"""

from dataclasses import dataclass

import msgspec

from waltap.decode.decoder import DecoderContext
from waltap.decode.relation import Column, Relation
from waltap_decoders.pgoutput.payload import PayloadReader
from waltap_decoders.pgoutput.tuple_codec import RowReader
from waltap_decoders.retirement import RelationRetirement

__all__ = ["AnnouncedRelation", "RelationCache", "RelationScope"]

_VERSIONS_KEPT = 4


@dataclass(frozen=True, slots=True)
class AnnouncedRelation:
    """A relation in force in a scope; ``order`` counts announcements in the session."""

    relation: Relation
    captured: bool
    order: int


class RelationScope:
    """Relations by OID, and readers of row messages by the first eight bytes of the message as it
    is outside a stream: type, relation, first mark, number of columns.
    """

    __slots__ = ("readers", "relations")

    def __init__(self) -> None:
        self.relations: dict[int, AnnouncedRelation] = {}
        self.readers: dict[bytes, RowReader] = {}

    def announce(self, announced: AnnouncedRelation) -> None:
        """Put a relation in force; readers of its former version go."""
        oid = announced.relation.oid
        known = self.relations.get(oid)
        self.relations[oid] = announced
        if known is not None and known.relation is not announced.relation:
            self.drop_readers(oid)

    def drop_readers(self, oid: int) -> None:
        """Forget the readers of a relation."""
        mark = oid.to_bytes(4, "big")
        for prefix in [prefix for prefix in self.readers if prefix[1:5] == mark]:
            del self.readers[prefix]


@dataclass(slots=True)
class _WireVersion:
    """A relation as the wire shows it, and as it was described last."""

    shown: Relation
    relation: Relation


class RelationCache:
    """Scopes and versions of one session.

    ``identities`` are the replica identity letters that the plugin may send. ``context.describe`` is
    asked at every announcement of a captured relation, because the server also announces one again
    when only a default, a key or nullability changed.
    """

    def __init__(
        self,
        identities: str,
        context: DecoderContext,
    ) -> None:
        self.session = RelationScope()
        self.streams: dict[int, RelationScope] = {}
        self._identities = identities
        self._captures, self._describe = context.captures, context.describe
        self.retirement = RelationRetirement(context)
        self.unsettled = context.unsettled
        self._types: dict[int, str] = {}
        self._versions: dict[int, dict[bytes, _WireVersion]] = {}
        self._prepared: set[int] = set()
        self._order = 0

    def read_type(self, payload: PayloadReader) -> None:
        """Take in a Type message, the cursor being behind its xid."""
        oid = payload.number(4, "type OID")
        schema = payload.string("schema") or "pg_catalog"
        name = payload.string("type name")
        payload.end()
        text = f"{schema}.{name}"
        if self._types.get(oid, text) != text:
            self._versions.clear()
        self._types[oid] = text

    def read_relation(
        self, payload: PayloadReader, scope: RelationScope, xid: int, *, committed: bool
    ) -> Relation:
        """Take in a Relation message of transaction ``xid``, the cursor being behind its own xid.

        A relation announced again as it was is the same object. One of a transaction that has not
        ``committed`` is not described: the catalogue does not show yet what the transaction did. It
        gets an object of its own, for whoever hands out the transaction's rows to describe then.
        """
        wire = payload.data[payload.at :]
        oid = int.from_bytes(wire[:4], "big")
        self._order += 1
        versions = self._versions.setdefault(oid, {})
        version = versions.get(wire)
        if version is None:
            parsed = self._parse(payload)
            if len(versions) == _VERSIONS_KEPT:
                del versions[next(iter(versions))]
            version = versions[wire] = _WireVersion(parsed, parsed)
        shown, captures = version.shown, self._captures
        captured = captures is None or captures(shown.schema, shown.table)
        if captured and self._describe is not None:
            shown = msgspec.structs.replace(shown, xid=xid)
            relation = self._described(version, shown) if committed else shown
            if not committed and scope is self.session:
                self._prepared.add(oid)
        else:
            relation = version.relation
        scope.announce(AnnouncedRelation(relation, captured, self._order))
        self.retirement.grown(self.session.relations)
        return relation

    def retire(self, lsn: int) -> None:
        """Let go of relations that are gone; the transactions to come committed at ``lsn`` or later."""
        due = self.retirement.due(lsn)
        for oid in due:
            self._versions.pop(oid, None)
            if self.session.relations.pop(oid, None) is not None:
                self.session.drop_readers(oid)
        if due:
            self.retirement.grown(self.session.relations)

    def settle(self, lsn: int) -> None:
        """Let relations be described anew whose description does not hold for what committed at
        ``lsn`` or later: when their next row comes."""
        for oid in [oid for oid, until in self.unsettled.items() if until < lsn]:
            del self.unsettled[oid]
            announced = self.session.relations.get(oid)
            for version in self._versions.get(oid, {}).values():
                if announced is not None and version.relation is announced.relation:
                    self.session.announce(
                        AnnouncedRelation(version.shown, announced.captured, announced.order)
                    )

    def in_session(self, announced: AnnouncedRelation, xid: int) -> AnnouncedRelation:
        """Return ``announced``, in force in the session, described now if it has not been: it was
        announced in a transaction that had not committed then. ``xid`` has committed."""
        relation = announced.relation
        if self._describe is None or not announced.captured or relation.primary_key is not None:
            return announced
        described = self._describe(msgspec.structs.replace(relation, xid=xid))
        announced = AnnouncedRelation(described, captured=True, order=announced.order)
        self.session.announce(announced)
        return announced

    def leave_prepared(self) -> None:
        """Drop the readers of relations that are not described: rows to come are of other
        transactions."""
        while self._prepared:
            self.session.drop_readers(self._prepared.pop())

    def _described(self, version: "_WireVersion", shown: Relation) -> Relation:
        """Describe ``shown``; the same object as last time where nothing new comes of it."""
        assert self._describe is not None
        described = self._describe(shown)
        if not version.relation.same_shape(described):
            version.relation = described
        return version.relation

    def promote(self, xid: int) -> None:
        """Make the relations of the streamed transaction ``xid`` the session's."""
        scope = self.streams.pop(xid)
        for oid, announced in scope.relations.items():
            known = self.session.relations.get(oid)
            if known is None or known.order < announced.order:
                self.session.announce(announced)

    def _parse(self, payload: PayloadReader) -> Relation:
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
