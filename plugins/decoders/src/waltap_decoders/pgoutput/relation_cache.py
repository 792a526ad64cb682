"""Announced relations of a session, and compiled readers of their rows.

A session has one scope, and each transaction that is streamed in progress has another. The server
announces relations again inside a streamed transaction, as that transaction sees them. When it
commits, the server counts these relations as announced (``cleanup_rel_sync_cache`` in pgoutput.c),
so they become the session's. When it aborts, they are dropped.
"""

from dataclasses import dataclass

import msgspec

from waltap.changes.decode.decoder import DecoderContext
from waltap.changes.decode.relation import Column, Relation
from waltap_decoders.pgoutput.payload import PayloadReader
from waltap_decoders.pgoutput.tuple_codec import RowReader
from waltap_decoders.retirement import RelationRetirement

# Versions remembered for each relation; the oldest is dropped first.
_MAX_VERSIONS = 4


@dataclass(frozen=True, slots=True)
class AnnouncedRelation:
    """Hold a relation in force in a scope."""

    relation: Relation
    captured: bool
    # Number of the announcement in the session: the later one wins at a commit.
    order: int


class RelationScope:
    """Hold relations by OID, and readers of their row messages.

    A reader's key is the first eight bytes of the message outside a stream: type, relation OID,
    first tuple tag, number of columns.
    """

    __slots__ = ("readers", "relations")

    def __init__(self) -> None:
        self.relations: dict[int, AnnouncedRelation] = {}
        self.readers: dict[bytes, RowReader] = {}

    def announce(self, announced: AnnouncedRelation) -> None:
        """Put a relation in force and drop readers of its old version."""
        oid = announced.relation.oid
        known = self.relations.get(oid)
        self.relations[oid] = announced
        if known is not None and known.relation is not announced.relation:
            self.drop_readers(oid)

    def drop_readers(self, oid: int) -> None:
        oid_bytes = oid.to_bytes(4, "big")
        for prefix in [prefix for prefix in self.readers if prefix[1:5] == oid_bytes]:
            del self.readers[prefix]


@dataclass(slots=True)
class _WireVersion:
    """Pair a relation of the wire with its last description."""

    shown: Relation
    relation: Relation


class RelationCache:
    """Hold the scopes and relation versions of one session."""

    def __init__(self, identities: str, context: DecoderContext) -> None:
        self.session = RelationScope()
        self.streams: dict[int, RelationScope] = {}
        # Replica identity letters that the plugin may send.
        self._identities = identities
        # Every announcement of a captured relation is described again: the server also announces
        # one when only a default, a key or nullability changed.
        self._captures, self._describe = context.captures, context.describe
        self._hide = context.hide
        self.retirement = RelationRetirement(context)
        self.valid_until = context.valid_until
        self._types: dict[int, str] = {}
        self._versions: dict[int, dict[bytes, _WireVersion]] = {}
        self._prepared: set[int] = set()
        self._order = 0

    def read_type(self, payload: PayloadReader) -> None:
        """Read a Type message. The cursor is after its xid."""
        oid = payload.number(4, "type OID")
        schema = payload.string("schema") or "pg_catalog"
        name = payload.string("type name")
        payload.end()
        text = f"{schema}.{name}"
        # Stored versions contain the old name of the type.
        if self._types.get(oid, text) != text:
            self._versions.clear()
        self._types[oid] = text

    def read_relation(
        self, payload: PayloadReader, scope: RelationScope, xid: int, *, committed: bool
    ) -> Relation:
        """Read a Relation message of transaction ``xid``.

        The cursor is after the message's own xid. A relation that is announced unchanged keeps its
        object.
        """
        wire = payload.data[payload.at :]
        oid = int.from_bytes(wire[:4], "big")
        self._order += 1
        versions = self._versions.setdefault(oid, {})
        version = versions.get(wire)
        if version is None:
            parsed = self._parse(payload)
            if len(versions) == _MAX_VERSIONS:
                del versions[next(iter(versions))]
            version = versions[wire] = _WireVersion(parsed, parsed)
        shown, captures = version.shown, self._captures
        captured = captures is None or captures(shown.schema, shown.table)
        if captured and self._describe is not None:
            shown = msgspec.structs.replace(shown, xid=xid)
            # Before the commit the catalogue does not show the transaction's DDL. Such a relation
            # stays undescribed and has its own object, which is described when the rows are
            # delivered.
            relation = self._described(version, shown) if committed else shown
            if not committed and scope is self.session:
                self._prepared.add(oid)
        else:
            relation = version.relation
            if not captured and self._hide is not None:
                self._hide(oid)
        scope.announce(AnnouncedRelation(relation, captured, self._order))
        self.retirement.grown(self.session.relations)
        return relation

    def drop_replaced(self, lsn: int) -> None:
        """Drop relations that are gone. Later transactions committed at ``lsn`` or later."""
        due = self.retirement.due(lsn)
        for oid in due:
            self._versions.pop(oid, None)
            if self.session.relations.pop(oid, None) is not None:
                self.session.drop_readers(oid)
        if due:
            self.retirement.grown(self.session.relations)

    def withdraw_expired(self, lsn: int) -> None:
        """Withdraw descriptions that do not hold from ``lsn`` on.

        Each such relation is described again at its next row.
        """
        for oid in [oid for oid, until in self.valid_until.items() if until < lsn]:
            del self.valid_until[oid]
            announced = self.session.relations.get(oid)
            for version in self._versions.get(oid, {}).values():
                if announced is not None and version.relation is announced.relation:
                    self.session.announce(
                        AnnouncedRelation(version.shown, announced.captured, announced.order)
                    )

    def in_session(self, announced: AnnouncedRelation, xid: int) -> AnnouncedRelation:
        """Return ``announced``, described if it was not yet.

        It was announced before its transaction committed. Transaction ``xid`` has committed.
        """
        relation = announced.relation
        if self._describe is None or not announced.captured or relation.primary_key is not None:
            return announced
        described = self._describe(msgspec.structs.replace(relation, xid=xid))
        announced = AnnouncedRelation(described, captured=True, order=announced.order)
        self.session.announce(announced)
        return announced

    def leave_prepared(self) -> None:
        """Drop readers of undescribed relations after a PREPARE."""
        # Other transactions may use these relations next, and need their description.
        while self._prepared:
            self.session.drop_readers(self._prepared.pop())

    def _described(self, version: "_WireVersion", shown: Relation) -> Relation:
        """Describe ``shown``, reusing the last description if equal."""
        assert self._describe is not None
        described = self._describe(shown)
        if not version.relation.same_shape(described):
            version.relation = described
        return version.relation

    def promote(self, xid: int) -> None:
        """Move a streamed transaction's relations to the session."""
        scope = self.streams.pop(xid)
        for oid, announced in scope.relations.items():
            known = self.session.relations.get(oid)
            # The session may have announced a newer version while the transaction was open.
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
