"""Transforms of batches, the stage before rendering (stage 4)."""

from waltap.transactions.transaction import Batch, Heartbeat, SnapshotRows, TransactionPart
from waltap.transforms.rewrite import Rewrite, rewrite_columns, with_relations
from waltap.transforms.row_view import RowChange, RowView

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
