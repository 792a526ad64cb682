"""YugabyteDB's replica identity CHANGE: the key and the written columns.

Source: YugabyteDB, pgoutput and yboutput (``proto.c``, ``yb_decode.c``), and Debezium's fork for
YugabyteDB. Columns that the storage did not send arrive as UNCHANGED, whatever their type, and so
differ from an explicit NULL. A change of the key arrives as a delete and an insert.
"""

from waltap.changes.decode.message import Delete, OldTuple, Update
from waltap.changes.decode.relation import Relation
from waltap.changes.decode.replica_identity import IdentityWarning, ReplicaIdentity, RowImages
from waltap.changes.decode.tuple_image import ABSENT
from waltap.ports.specs import ReplicaIdentitySpec


class ChangeIdentity(ReplicaIdentity):
    """Interpret rows under CHANGE.

    Updates have the key and the written columns; all others are UNCHANGED. Deletes have the key.
    """

    name = "change"
    before = "of a delete the key; of an update nothing"
    partial = True

    def __init__(self, relation: Relation) -> None:
        super().__init__(relation)
        keys = set(relation.primary_key or ())
        self._held = tuple(column.in_identity or column.name in keys for column in relation.columns)

    def update(self, message: Update) -> RowImages:
        # Early servers sent an old tuple, which carries no information.
        return RowImages(None, message.new, None)

    def delete(self, message: Delete) -> RowImages | None:
        if message.old_kind is OldTuple.NONE or not message.old:
            return None
        # Other values of the old tuple are not the row's.
        key = tuple(
            value if held else ABSENT for value, held in zip(message.old, self._held, strict=True)
        )
        return RowImages(key, None, key)

    @classmethod
    def warnings(cls, relation: Relation) -> list[IdentityWarning]:
        """Warn of a table whose rows nothing identifies."""
        if relation.primary_key or any(column.in_identity for column in relation.columns):
            return []
        what = "it has no primary key: its updates and deletes identify no row"
        return [IdentityWarning(relation.name, what, "Give the table a primary key.")]


# Result of ``register_replica_identities``; the connector has PostgreSQL's as well.
REPLICA_IDENTITIES = (
    ReplicaIdentitySpec(
        name="change",
        summary="Updates hold the key and the columns that were written; deletes hold the key.",
        letter="c",
        factory=ChangeIdentity,
    ),
)
