"""A replica identity: old tuples hold the whole row, and a change of the key is seen.

Replace this by what your server sends. What `update` and `delete` say is all that the rest of waltap
knows of old rows: nothing else looks at the identity.
"""

from waltap.changes.decode import (
    ABSENT,
    UNCHANGED,
    Delete,
    IdentityWarning,
    OldTuple,
    Relation,
    ReplicaIdentity,
    RowImages,
    Update,
)


class WholeRow(ReplicaIdentity):
    """One object per relation version."""

    name = "whole-row"

    def update(self, message: Update) -> RowImages:
        """Return before, after and the row that has the old key; None for what did not come."""
        old = message.old
        if message.old_kind is OldTuple.NONE or not old:
            return RowImages(before=None, after=message.new, old_key=None)
        after = tuple(
            before if new is UNCHANGED and before is not ABSENT else new
            for new, before in zip(message.new, old, strict=True)
        )
        return RowImages(before=old, after=after, old_key=old)

    def delete(self, message: Delete) -> RowImages | None:
        """Return the row that was deleted, None where the server does not say which."""
        if message.old_kind is OldTuple.NONE or not message.old:
            return None
        return RowImages(before=message.old, after=None, old_key=message.old)

    @classmethod
    def warnings(cls, relation: Relation) -> list[IdentityWarning]:
        """Say what the owner of the table should know, once per table."""
        if relation.primary_key:
            return []
        what = "it has no primary key: records of its rows have no key"
        return [IdentityWarning(relation.name, what, "Give the table a primary key.")]
