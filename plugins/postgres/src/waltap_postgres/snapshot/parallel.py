"""Several connections read one snapshot at a time; what they read comes as one stream.

Each thread has a connection of its own and takes work in the order of the plan. Pieces are handed over in
that order too: those of one table one after the other, from whichever thread, while the threads that are
ahead read the tables behind it, as far as the bounds of the queue let them. So the engine, which is one
thread, sees a snapshot as if one connection read it; only the order of rows within a table is nobody's.

Shutdown: whoever iterates stops (its end, an error, a stop): the queue is closed, which ends every wait of
a thread within a tenth of a second; each closes its connection; they are waited for.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence

from waltap.source.connector import StopRequested
from waltap.transactions.transaction import SnapshotRows
from waltap_postgres.snapshot.plan import ReadTask
from waltap_postgres.snapshot.reader import TablesReader
from waltap_postgres.snapshot.size import text_bytes
from waltap_postgres.waiting import POLL_S

__all__ = ["ParallelReading"]

CURRENT_BYTES, AHEAD_BYTES = 1 << 20, 3 << 20
"""So much text, about, waits of the work that is handed over, and of all behind it together."""
JOIN_S = 10.0

Open = Callable[[Callable[[], bool]], contextlib.AbstractContextManager[TablesReader]]


class _ReaderClosed(Exception):
    """Nobody takes pieces any more."""


class _WorkQueue:
    """What waits of one piece of work."""

    __slots__ = ("bytes", "pieces")

    def __init__(self) -> None:
        self.pieces: deque[tuple[SnapshotRows, int]] = deque()
        self.bytes = 0


class ParallelReading:
    """Reads ``works`` with ``threads`` connections. ``open_reader`` gives a thread its reader; it is given
    what tells, during waits, that the thread is to end. ``stopping``: the run is to end."""

    def __init__(
        self,
        works: Sequence[ReadTask],
        threads: int,
        open_reader: Open,
        stopping: Callable[[], bool],
    ) -> None:
        self._works, self._open, self._stopping = works, open_reader, stopping
        self._count = min(threads, sum(max(1, len(work.parts)) for work in works))
        self._changed = threading.Condition()
        self._lanes = [_WorkQueue() for _ in works]
        self._next = self._current = self._ahead = 0
        self._error: BaseException | None = None
        self._closed = False

    def pieces(self) -> Generator[SnapshotRows]:
        """Yield what is read, in the order of the works. Raises: what a thread met; StopRequested."""
        threads = [
            threading.Thread(target=self._run, name=f"waltap snapshot {number}", daemon=True)
            for number in range(self._count)
        ]
        try:
            for thread in threads:
                thread.start()
            for place, work in enumerate(self._works):
                yield from self._of(place, work)
        finally:
            self._close()
            deadline = time.monotonic() + JOIN_S
            for thread in threads:
                if thread.ident is not None:
                    thread.join(max(0.0, deadline - time.monotonic()))

    def _of(self, place: int, work: ReadTask) -> Iterator[SnapshotRows]:
        with self._changed:
            self._current = place
            self._ahead -= self._lanes[place].bytes
            self._changed.notify_all()
        wanted = len(work.targets)
        while wanted:
            piece = self._taken(self._lanes[place])
            work.arrived(piece)
            wanted -= piece.complete
            yield piece

    def _taken(self, lane: _WorkQueue) -> SnapshotRows:
        with self._changed:
            while not lane.pieces:
                if self._error is not None:
                    raise self._error
                if self._stopping():
                    raise StopRequested
                self._changed.wait(POLL_S)
            piece, size = lane.pieces.popleft()
            lane.bytes -= size
            self._changed.notify_all()
        return piece

    def _close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- in the threads -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._open(self._ends) as reader:
                while (place := self._chosen()) is not None:
                    with contextlib.closing(reader.read(self._works[place])) as pieces:
                        for piece in pieces:
                            self._put(place, piece)
        except _ReaderClosed:
            return
        except BaseException as error:  # noqa: BLE001 - whoever iterates raises it
            with self._changed:
                if not self._closed and self._error is None:
                    self._error = error
                self._changed.notify_all()

    def _ends(self) -> bool:
        return self._closed or self._stopping()

    def _chosen(self) -> int | None:
        """Return the place of the first work that has something left to read."""
        with self._changed:
            while self._next < len(self._works) and not self._closed:
                work, place = self._works[self._next], self._next
                if work.left:
                    return place
                self._next += 1
                if not work.parts:
                    return place
        return None

    def _put(self, place: int, piece: SnapshotRows) -> None:
        size = text_bytes(piece.rows)
        lane = self._lanes[place]
        with self._changed:
            while not self._closed and not self._room(place, lane):
                self._changed.wait(POLL_S)
            if self._closed:
                raise _ReaderClosed
            lane.pieces.append((piece, size))
            lane.bytes += size
            if place != self._current:
                self._ahead += size
            self._changed.notify_all()

    def _room(self, place: int, lane: _WorkQueue) -> bool:
        if place == self._current:
            return lane.bytes < CURRENT_BYTES
        return self._ahead < AHEAD_BYTES
