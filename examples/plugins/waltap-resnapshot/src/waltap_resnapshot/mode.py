"""A snapshot mode: when tables are read, which of them, and which of their rows."""

from waltap.changes.decode import Relation
from waltap.ports.snapshot import SnapshotFacts, Snapshotter, SnapshotStart

UNREAD = "archive"
"""The schema whose tables are not read."""
MARK = "deleted_at"
"""Rows that have a value in a column of this name are not read."""


class Resnapshot(Snapshotter):
    """Reads at the first start, and again when the position is lost."""

    # [when]
    def takes_snapshot(self, known: SnapshotFacts) -> bool:
        """Tell whether tables are read before streaming. Nothing else may count: no clock, no database."""
        return not known.offset or known.snapshot_incomplete or not known.position_available

    def recovers_lost_position(self) -> bool:
        """A lost position is answered by a new snapshot, not by an error."""
        return True

    # [/when]
    # [tables]
    def reads(self, relation: Relation, start: SnapshotStart) -> bool:
        """Do not read archives; their changes are streamed like any table's."""
        return relation.schema != UNREAD

    def query(self, relation: Relation, start: SnapshotStart) -> str | None:
        """Leave out rows that are marked as deleted, where the table has such a mark."""
        if MARK not in {column.name for column in relation.columns}:
            return None
        schema, table = (name.replace('"', '""') for name in (relation.schema, relation.table))
        return f'SELECT * FROM "{schema}"."{table}" WHERE "{MARK}" IS NULL'

    # [/tables]
