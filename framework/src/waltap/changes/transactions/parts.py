"""Make parts of transactions from arriving or buffered changes. Sans-IO."""

from collections.abc import Callable, Iterator

import msgspec

from waltap.changes.decode.message import Begin, Change, Commit, Skipped
from waltap.changes.transactions.spill import Item, TransactionBuffer
from waltap.changes.transactions.transaction import TransactionPart

__all__ = ["PART_BYTES", "PART_CHANGES", "OpenTransaction", "spooled_parts"]

# A buffer is released in parts of about this many changes,
PART_CHANGES = 4096
# and of about this many bytes: wide rows must not fill the memory.
PART_BYTES = 8 * 1024 * 1024


class OpenTransaction:
    """Hold the open transaction whose commit LSN is known."""

    __slots__ = (
        "_changes",
        "_gaps",
        "begin",
        "dropped",
        "first_index",
        "origin",
        "origin_lsn",
        "skip",
        "starts",
    )

    def __init__(self, begin: Begin) -> None:
        self.begin = begin
        self.origin: str | None = None
        self.origin_lsn: int | None = None
        self.starts, self.dropped = True, False
        self.first_index = self.skip = 0
        self._changes: list[Change] = []
        self._gaps: list[tuple[int, int]] | None = None

    def append(self) -> Callable[[Item], None]:
        """Return the function to call with each change."""
        if self.dropped:
            return _ignore
        # The list's own append, without a Python frame, wherever no change is dropped.
        return self._drop_first if self.skip else self._changes.append  # type: ignore[return-value]

    def pass_over(self, count: int) -> None:
        """Count changes that the decoder left out."""
        dropped = min(count, self.skip)
        self.skip -= dropped
        if count > dropped:
            if self._gaps is None:
                self._gaps = []
            _pass_over(self._gaps, len(self._changes), count - dropped)

    def hand_out(self, parts: list[TransactionPart], previous: int | None) -> None:
        """Add the changes so far as an incomplete part."""
        if self._changes and not self.dropped:
            parts.append(self._part(previous))

    def complete(self, parts: list[TransactionPart], previous: int | None, commit: Commit) -> None:
        """Add the remaining changes as the last part."""
        part = self._part(previous)
        part.complete, part.end_lsn = True, commit.end_lsn
        # 0: the plugin sends the time with the begin only.
        part.commit_ts = commit.commit_ts or part.commit_ts
        parts.append(part)

    def _part(self, previous: int | None) -> TransactionPart:
        changes, begin = self._changes, self.begin
        # 0 is no position: the plugin sent none with the begin.
        if begin.lsn == 0 and changes:
            begin.lsn = changes[0].lsn
        part = TransactionPart(
            xid=begin.xid,
            begin_lsn=begin.lsn,
            commit_lsn=begin.commit_lsn,
            commit_ts=begin.commit_ts,
            previous_end_lsn=previous,
            changes=changes,
            first_index=self.first_index,
            starts=self.starts,
            complete=False,
            origin=self.origin,
            origin_lsn=self.origin_lsn,
        )
        count = len(changes)
        if self._gaps is not None:
            part.gaps, self._gaps = self._gaps, None
            count = part.wire_count
        self.first_index += count
        self.starts = False
        self._changes = []
        return part

    def _drop_first(self, change: Change) -> None:
        if self.skip:
            self.skip -= 1
        else:
            self._changes.append(change)


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
                    _pass_over(gaps, len(changes), count - dropped)
            elif not dropped:
                changes.append(item)
    if discard:
        spool.discard()
    head.changes, head.gaps = changes, gaps
    yield head


def _pass_over(gaps: list[tuple[int, int]], at: int, count: int) -> None:
    """Record ``count`` missing changes before change ``at``."""
    # Adjacent gaps become one, so that the list stays short where whole tables are filtered.
    if gaps and gaps[-1][0] == at:
        gaps[-1] = at, gaps[-1][1] + count
    else:
        gaps.append((at, count))


def _ignore(_item: Item) -> None:
    """Drop a change of a transaction that was delivered before."""
