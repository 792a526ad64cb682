"""Make parts of transactions from buffered changes. Sans-IO."""

from collections.abc import Iterator

import msgspec

from waltap.changes.decode.message import Change, Skipped
from waltap.changes.transactions.spill import TransactionBuffer
from waltap.changes.transactions.transaction import TransactionPart

# A buffer is released in parts of about this many changes,
PART_CHANGES = 4096
# and of about this many bytes: wide rows must not fill the memory.
PART_BYTES = 8 * 1024 * 1024


def spooled_parts(
    spool: TransactionBuffer, head: TransactionPart, skip: int, *, discard: bool
) -> Iterator[TransactionPart]:
    """Yield the parts of a committed transaction.

    ``head`` is the template of all parts and becomes the last one. The first ``skip`` changes are
    left out.
    """
    changes: list[Change] = []
    gaps: list[tuple[int, int]] = []
    size = 0
    for items, chunk_bytes in spool.chunks():
        if len(changes) >= PART_CHANGES or size >= PART_BYTES:
            part = msgspec.structs.replace(
                head, changes=changes, gaps=gaps, complete=False, end_lsn=0
            )
            yield part
            head.first_index += part.wire_count
            head.starts = False
            changes, gaps, size = [], [], 0
        size += chunk_bytes
        for item in items:
            count = item.count if isinstance(item, Skipped) else 1
            dropped = min(count, skip)
            skip -= dropped
            if isinstance(item, Skipped):
                if count > dropped:
                    pass_over(gaps, len(changes), count - dropped)
            elif not dropped:
                changes.append(item)
    if discard:
        spool.discard()
    head.changes, head.gaps = changes, gaps
    yield head


def pass_over(gaps: list[tuple[int, int]], at: int, count: int) -> None:
    """Record ``count`` missing changes before change ``at``."""
    # Adjacent gaps become one, so that the list stays short where whole tables are filtered.
    if gaps and gaps[-1][0] == at:
        gaps[-1] = at, gaps[-1][1] + count
    else:
        gaps.append((at, count))
