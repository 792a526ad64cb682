"""What old tuples mean under PostgreSQL's four replica identities.

Source: PostgreSQL manual, "ALTER TABLE … REPLICA IDENTITY" and "Logical Replication Message
Formats"; Debezium's recorded events for keys and ``before``.
"""

from waltap.decode.message import Delete, OldTuple, Update
from waltap.decode.relation import Relation
from waltap.decode.replica_identity import IdentityWarning, ReplicaIdentity, RowImages
from waltap.decode.tuple_image import ABSENT, UNCHANGED, Tuple

__all__ = [
    "DefaultIdentity",
    "FullIdentity",
    "IndexIdentity",
    "NothingIdentity",
    "completed",
    "identity_sql",
    "usable_word",
]


def completed(new: Tuple, old: Tuple) -> Tuple:
    """Return ``new`` with its UNCHANGED values taken from ``old``, where ``old`` has them."""
    if UNCHANGED not in new:
        return new
    return tuple(
        o if n is UNCHANGED and o is not ABSENT else n for n, o in zip(new, old, strict=True)
    )


def identity_sql(relation: Relation, identity: str) -> str:
    """Return the statement that gives ``relation`` another replica identity."""
    from psycopg import sql  # plugin.py comes here: `waltap --help` must not load libpq

    name = sql.Identifier(relation.schema, relation.table).as_string(None)
    return f"ALTER TABLE {name} REPLICA IDENTITY {identity};"


def usable_word(relation: Relation) -> str:
    """Return the replica identity that mends a table without one: where it has no primary key a unique
    index, else the whole row."""
    if relation.usable_index is None or _has_primary(relation):
        return "FULL"
    from psycopg import sql

    return f"USING INDEX {sql.Identifier(relation.usable_index).as_string(None)}"


def _has_primary(relation: Relation) -> bool:
    """Tell whether there is a primary key, not only an index that stands in for it."""
    return bool(relation.primary_key if relation.wire_key is None else relation.wire_key)


def _identifies(kind: OldTuple, old: Tuple, relation: Relation) -> bool:
    """Tell whether an old row came; that of a table without columns is empty."""
    return kind is not OldTuple.NONE and (bool(old) or not relation.columns)


class _OldTupleIdentity(ReplicaIdentity):
    """Reads old tuples as they come: ``before`` and the old key are what the server sent.

    A key column that the old tuple lacks stays ABSENT there, so that a format writes the stand-in
    of a missing value for it. This is Debezium's reading too: under USING INDEX with an index other
    than the key, a change of an indexed column looks like a change of the key, a delete's key is
    made of stand-ins, and a change of the key itself goes unseen.
    """

    def update(self, message: Update) -> RowImages:
        """Return the images; without an old tuple the key is known not to have changed."""
        old = message.old
        if old is None or not _identifies(message.old_kind, old, message.relation):
            return RowImages(None, message.new, None)
        return RowImages(old, completed(message.new, old), old)

    def delete(self, message: Delete) -> RowImages | None:
        """Return the images; None without an old tuple."""
        old = message.old
        if not _identifies(message.old_kind, old, message.relation):
            return None
        return RowImages(old, None, old)


class DefaultIdentity(_OldTupleIdentity):
    """DEFAULT: the primary key."""

    name = "default"
    before = "the old key; of an update only where the key changes"

    @classmethod
    def warnings(cls, relation: Relation) -> list[IdentityWarning]:
        """Warn of a table whose rows are identified by nothing: it has no key, or a deferrable one."""
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
    """FULL: the whole row, so that unchanged TOAST values of the new tuple are known too."""

    name = "full"
    before = "the whole row"


class IndexIdentity(_OldTupleIdentity):
    """USING INDEX: the columns of one unique index."""

    name = "index"
    before = "the index's columns; of an update only where they change"

    @property
    def identifying(self) -> tuple[int, ...]:
        """Return the columns of the index; the key's where it is gone, and old tuples with it."""
        columns = self.relation.columns
        held = tuple(index for index, column in enumerate(columns) if column.in_identity)
        return held or super().identifying

    @classmethod
    def warnings(cls, relation: Relation) -> list[IdentityWarning]:
        """Warn of an index that is gone, and of a key that the index does not cover."""
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
    """NOTHING: no old tuples. Updates come as new rows, deletes identify nothing."""

    name = "nothing"
    before = "nothing; the server refuses UPDATE and DELETE of a table that publishes them"

    def update(self, message: Update) -> RowImages:
        """Return the new row alone."""
        return RowImages(None, message.new, None)

    def delete(self, message: Delete) -> RowImages | None:
        """Return None: no row is identified."""
        return None

    @classmethod
    def warnings(cls, relation: Relation) -> list[IdentityWarning]:
        """Warn of deletes, which arrive as nothing."""
        wanted = "DEFAULT" if _has_primary(relation) else usable_word(relation)
        what = "its replica identity is NOTHING: updates have no old row, and deletes do not come"
        return [IdentityWarning(relation.name, what, identity_sql(relation, wanted))]
