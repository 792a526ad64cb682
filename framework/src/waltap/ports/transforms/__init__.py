"""Transforms of batches, the stage before rendering (stage 4)."""

from waltap.changes.transactions.transaction import Batch, Heartbeat, SnapshotRows, TransactionPart
from waltap.ports.transforms.rewrite import Rewrite, rewrite_columns, with_relations
from waltap.ports.transforms.row_view import RowChange, RowView

__all__ = [
    "Batch",
    "Heartbeat",
    "Rewrite",
    "RowChange",
    "RowView",
    "SnapshotRows",
    "TransactionPart",
    "rewrite_columns",
    "with_relations",
]
