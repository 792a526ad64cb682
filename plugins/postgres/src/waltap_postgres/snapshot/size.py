"""Estimated size of rows."""

from collections.abc import Sequence

from waltap.decode.tuple_image import Tuple
from waltap.transactions.row_block import RowBlock

__all__ = ["text_bytes"]

LOOKED_AT = 8
ROW_BYTES = 64


def text_bytes(rows: Sequence[Tuple]) -> int:
    """Return the estimated bytes of text in rows, never 0."""
    if not rows:
        return ROW_BYTES
    if isinstance(rows, RowBlock):
        return rows.nbytes
    # A sample is enough: the size only bounds memory.
    step = max(1, len(rows) // LOOKED_AT)
    some = [rows[at] for at in range(0, len(rows), step)]
    held = sum(
        ROW_BYTES + sum(len(value) for value in row if isinstance(value, str)) for row in some
    )
    return held * len(rows) // len(some)
