"""Assemble messages into transactions of changes. Sans-IO."""

from waltap.changes.decode.row_block import RowBlock
from waltap.changes.transactions.transaction import Batch, Heartbeat, SnapshotRows, TransactionPart

__all__ = ["Batch", "Heartbeat", "RowBlock", "SnapshotRows", "TransactionPart"]
