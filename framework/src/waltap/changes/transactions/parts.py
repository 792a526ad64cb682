"""Make parts of transactions from buffered changes. Sans-IO."""

from collections.abc import Iterator, Sequence

import msgspec

from waltap.changes.decode.message import Change, InsertBlock, Skipped, joined
from waltap.changes.transactions.spill import Item, TransactionBuffer
from waltap.changes.transactions.transaction import TransactionPart

# A buffer is released in parts of about this many changes,
PART_CHANGES = 4096
# and of about this many bytes: wide rows must not fill the memory.
PART_BYTES = 8 * 1024 * 1024


def buffered_parts(
    buffer: TransactionBuffer, head: TransactionPart, skip: int, *, discard: bool
) -> Iterator[TransactionPart]:
    """Yield the parts of a committed transaction.

    ``head`` is the template of all parts and becomes the last one. The first ``skip`` changes are
    left out. Neighbouring blocks of one relation are joined; a part has blocks or single changes.
    """
    changes: list[Change] = []
    blocks: list[InsertBlock] = []
    gaps: list[tuple[int, int]] = []
    size = count = 0

    def rows() -> Sequence[Change]:
        return joined(blocks) if blocks else changes

    for items, chunk_bytes in buffer.chunks():
        fits = not changes if isinstance(items, InsertBlock) else not blocks
        if blocks and isinstance(items, InsertBlock):
            last = blocks[-1]
            fits = items.relation is last.relation and items.xid == last.xid
        if not fits or count >= PART_CHANGES or size >= PART_BYTES:
            part = msgspec.structs.replace(
                head, changes=rows(), gaps=gaps, complete=False, end_lsn=0
            )
            head.first_index += part.wire_count
            head.starts = False
            # The part has a copy of joined blocks, so they need not stay while it is written.
            changes, blocks, gaps, size, count = [], [], [], 0, 0
            yield part
        size += chunk_bytes
        if isinstance(items, InsertBlock):
            block = items[skip:]
            if isinstance(block, InsertBlock) and block:
                blocks.append(block)
            skip = max(0, skip - len(items))
        else:
            skip = _add(items, skip, changes, gaps)
        count = len(changes) + sum(map(len, blocks))
    if discard:
        buffer.discard()
    head.changes, head.gaps = rows(), gaps
    yield head


def _add(
    items: Sequence[Item], skip: int, changes: list[Change], gaps: list[tuple[int, int]]
) -> int:
    """Add ``items`` but the first ``skip`` changes; return the rest of ``skip``."""
    for item in items:
        count = item.count if isinstance(item, Skipped) else 1
        dropped = min(count, skip)
        skip -= dropped
        if isinstance(item, Skipped):
            if count > dropped:
                add_gap(gaps, len(changes), count - dropped)
        elif not dropped:
            changes.append(item)
    return skip


def add_gap(gaps: list[tuple[int, int]], at: int, count: int) -> None:
    """Record ``count`` missing changes before change ``at``."""
    # Adjacent gaps become one, so that the list stays short where whole tables are filtered.
    if gaps and gaps[-1][0] == at:
        gaps[-1] = at, gaps[-1][1] + count
    else:
        gaps.append((at, count))
