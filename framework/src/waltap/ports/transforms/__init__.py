"""Transforms of batches, the stage before rendering (stage 4)."""

from waltap.changes.transactions.transaction import Batch, Heartbeat, SnapshotRows, TransactionPart
from waltap.ports.transforms.rewrite import (
    Rewrite,
    RowChange,
    RowView,
    rewrite_columns,
    with_relations,
)

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
