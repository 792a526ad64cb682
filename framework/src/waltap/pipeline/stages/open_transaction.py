"""Find the last change that another engine delivered of a transaction."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from waltap.changes.transactions.assembly import TransactionAssembler
from waltap.changes.transactions.position import Position, lsn_text
from waltap.changes.transactions.transaction import TransactionPart
from waltap.clock import Clock
from waltap.errors import SourceError
from waltap.ports.source.connector import ChangeStream

POLL_S: Final = 0.2
SILENCE_S: Final = 120.0


StreamSilent = SourceError.define(
    "StreamSilent",
    "WT-2022",
    "The server sends neither changes nor keepalives from the slot.",
    "Check the server's log and its load; `waltap status FILE` shows the WAL that it keeps for "
    "the slot.",
)


def position_behind(
    stream: ChangeStream,
    end_lsn: int,
    event_lsn: int,
    *,
    events: int,
    wal_end: int,
    memory_bytes: int,
    clock: Clock,
) -> Position:
    """Return the position behind the change at ``event_lsn``.

    The change is in the transaction that commits first after ``end_lsn``, where ``stream`` begins; if it
    has no such change, the position is before that transaction. Several changes of one COPY may share the
    LSN: ``events`` is the number of delivered ones, 0 if unknown; then none counts. ``wal_end`` is the
    server's position: a stream beyond it has nothing else. Raises: WaltapError.
    """
    start = Position(end_lsn)
    with TemporaryDirectory(prefix="waltap-") as folder:
        assembler = TransactionAssembler(start, None, Path(folder), memory_bytes)
        try:
            return _found(_parts(stream, assembler, wal_end, clock), start, event_lsn, events)
        finally:
            assembler.close()


def _found(
    parts: Iterable[TransactionPart], start: Position, event_lsn: int, events: int
) -> Position:
    commit_lsn = first = 0
    same = 0
    for part in parts:
        if part.xid is None:
            continue  # a message between transactions
        if commit_lsn and part.commit_lsn != commit_lsn:
            break
        commit_lsn = part.commit_lsn
        for index, change in zip(part.numbers(), part.changes, strict=True):
            if change.lsn != event_lsn:
                continue
            first = index if not same else first
            same += 1
        if not part.complete:
            continue
        if not same:
            break
        counted = events or int(same == 1)
        index = first + min(counted, same)
        if index == part.first_index + part.wire_count:
            return Position(part.end_lsn)
        return Position(start.end_lsn, commit_lsn, index) if index else start
    return start


def _parts(
    stream: ChangeStream, assembler: TransactionAssembler, wal_end: int, clock: Clock
) -> Iterator[TransactionPart]:
    """Yield the parts that the server sends up to ``wal_end``. Raises: StreamSilent."""
    heard = clock.monotonic()
    stream.ask()
    while True:
        backlog = assembler.backlog
        messages = [] if backlog else stream.receive(POLL_S)
        if messages or backlog:
            heard = clock.monotonic()
            yield from assembler.feed(messages)
        elif stream.idle_lsn() >= wal_end and assembler.idle:
            return
        elif clock.monotonic() - heard > SILENCE_S:
            what = f"nothing came from the slot for {SILENCE_S:.0f} s, up to {lsn_text(wal_end)}"
            raise StreamSilent(what)
        else:
            stream.ask()
