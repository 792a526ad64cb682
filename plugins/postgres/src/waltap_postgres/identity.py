"""PostgreSQL's replica identities: their flags and old tuples.

Source: PostgreSQL manual, "ALTER TABLE … REPLICA IDENTITY" and "Logical Replication Message
Formats"; Debezium's recorded events for keys and ``before``.
"""

import enum

from waltap.base.text import sql_name
from waltap.changes.decode.message import Delete, OldTuple, Update
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.replica_identity import IdentityWarning, ReplicaIdentity, RowImages
from waltap.changes.decode.tuple_image import UNCHANGED, Tuple
from waltap.ports.specs import ReplicaIdentitySpec

# What is sent of old rows that nothing identifies.
REFUSED = "nothing; the server refuses UPDATE and DELETE of a table that publishes them"


class IdentityEvidence(enum.Enum):
    """Name the columns that `Column.in_identity` flags."""

    KEY = "its primary key"
    INDEX = "the columns of a unique index"
    ROW = "all its columns"
    NOTHING = "none, whatever its key is"


_EVIDENCE = {"i": IdentityEvidence.INDEX, "f": IdentityEvidence.ROW, "n": IdentityEvidence.NOTHING}


def identity_evidence(identity: str) -> IdentityEvidence:
    """Return the meaning of the flags under an identity's letter."""
    # Other servers have more identities, which flag the primary key like DEFAULT.
    return _EVIDENCE.get(identity, IdentityEvidence.KEY)


def completed(new: Tuple, old: Tuple) -> Tuple:
    """Return ``new`` with UNCHANGED values from ``old``."""
    if UNCHANGED not in new:
        return new
    # Such a value is never NULL: a root under FULL sends the key of a partition that is not as a
    # whole row, with NULLs.
    return tuple(
        o if n is UNCHANGED and isinstance(o, str) else n for n, o in zip(new, old, strict=True)
    )


def identity_sql(relation: Relation, identity: str) -> str:
    """Return the statement that sets a replica identity."""
    name = sql_name(relation.schema, relation.table)
    return f"ALTER TABLE {name} REPLICA IDENTITY {identity};"


def usable_word(relation: Relation) -> str:
    """Return a replica identity that identifies the table's rows.

    It is a unique index of a table without primary key, else FULL.
    """
    if relation.usable_index is None or _has_primary(relation):
        # FULL does not support updates if it has a generated column.
        return "DEFAULT" if relation.identity == "f" else "FULL"

    return f"USING INDEX {sql_name(relation.usable_index)}"


def _has_primary(relation: Relation) -> bool:
    """Return whether the table has a primary key, not just an index."""
    return bool(relation.primary_key if relation.wire_key is None else relation.wire_key)


def _identifies(kind: OldTuple, old: Tuple, relation: Relation) -> bool:
    # The old row of a table without columns is empty.
    return kind is not OldTuple.NONE and (bool(old) or not relation.columns)


class _OldTupleIdentity(ReplicaIdentity):
    """Use the server's old tuple as ``before`` and as the old key.

    A key column that the old tuple lacks stays ABSENT, so that a format writes its placeholder. Debezium
    does the same. So under USING INDEX with an index other than the key, a change of an indexed column
    looks like a change of the key, a delete's key has placeholders, and a change of the key is unseen.
    """

    def update(self, message: Update) -> RowImages:
        # The server sends an old tuple whenever the key changes.
        old = message.old
        if old is None or not _identifies(message.old_kind, old, message.relation):
            return RowImages(None, message.new, None)
        return RowImages(old, completed(message.new, old), old)

    def delete(self, message: Delete) -> RowImages | None:
        old = message.old
        if not _identifies(message.old_kind, old, message.relation):
            return None
        return RowImages(old, None, old)


class DefaultIdentity(_OldTupleIdentity):
    """Interpret DEFAULT: the primary key."""

    name = "default"
    before = "the old key; of an update only where the key changes"

    def __init__(self, relation: Relation) -> None:
        super().__init__(relation)
        if not any(column.in_identity for column in relation.columns):
            self.before = REFUSED

    @classmethod
    def warnings(cls, relation: Relation) -> list[IdentityWarning]:
        """Warn of a table without a key, or with a deferrable one."""
        if any(column.in_identity for column in relation.columns):
            return []
        key = _has_primary(relation)
        why = "its primary key is deferrable" if key else "it has no primary key"
        what = f"nothing identifies its rows, as {why}"
        if relation.usable_index and not key:
            what += (
                f"; its unique index {relation.usable_index} does once it is the replica identity"
            )
        return [IdentityWarning(relation.name, what, identity_sql(relation, usable_word(relation)))]


class FullIdentity(_OldTupleIdentity):
    """Interpret FULL: the whole row, with unchanged TOAST values."""

    name = "full"
    before = "the whole row"


class IndexIdentity(_OldTupleIdentity):
    """Interpret USING INDEX: the columns of one unique index."""

    name = "index"
    before = "the index's columns; of an update only where they change"

    @property
    def identifying(self) -> tuple[int, ...]:
        # Without the index the server sends no old tuples, and the key identifies rows.
        columns = self.relation.columns
        held = tuple(index for index, column in enumerate(columns) if column.in_identity)
        return held or super().identifying

    @classmethod
    def warnings(cls, relation: Relation) -> list[IdentityWarning]:
        """Warn of a dropped index or uncovered key."""
        held = {column.name for column in relation.columns if column.in_identity}
        if not held:
            wanted = "DEFAULT" if _has_primary(relation) else usable_word(relation)
            what = "nothing identifies its rows, as the index of its replica identity is gone"
            return [IdentityWarning(relation.name, what, identity_sql(relation, wanted))]
        key = relation.wire_key or relation.primary_key or ()
        missing = [name for name in key if name not in held]
        if not missing:
            return []
        follows = (
            "the key of its events is the index's columns, not the primary key"
            if relation.wire_key
            else "deletes come without the row's key, and changes of the key are not seen"
        )
        what = f"its replica identity index lacks the key's {', '.join(missing)}: {follows}"
        return [IdentityWarning(relation.name, what, identity_sql(relation, "DEFAULT"))]


class NothingIdentity(ReplicaIdentity):
    """Interpret NOTHING: no old tuples, and deletes without rows."""

    name = "nothing"
    before = REFUSED

    def update(self, message: Update) -> RowImages:
        return RowImages(None, message.new, None)

    def delete(self, message: Delete) -> RowImages | None:
        """Return None, because no row is identified."""
        return None

    @classmethod
    def warnings(cls, relation: Relation) -> list[IdentityWarning]:
        wanted = "DEFAULT" if _has_primary(relation) else usable_word(relation)
        what = "its replica identity is NOTHING: updates have no old row, and deletes do not come"
        return [IdentityWarning(relation.name, what, identity_sql(relation, wanted))]


# Result of ``register_replica_identities``.
REPLICA_IDENTITIES = (
    ReplicaIdentitySpec(
        name="default",
        summary="Old tuples hold the primary key, and only when it changed or the row is deleted.",
        letter="d",
        factory=DefaultIdentity,
    ),
    ReplicaIdentitySpec(
        name="nothing",
        summary="No old tuples: updates without before, deletes identify no row.",
        letter="n",
        factory=NothingIdentity,
    ),
    ReplicaIdentitySpec(
        name="full", summary="Old tuples hold the whole row.", letter="f", factory=FullIdentity
    ),
    ReplicaIdentitySpec(
        name="index",
        summary="Old tuples hold the columns of a unique index, when they changed or on delete.",
        letter="i",
        factory=IndexIdentity,
    ),
)
