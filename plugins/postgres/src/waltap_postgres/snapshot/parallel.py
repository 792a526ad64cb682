"""Parallel reading of one snapshot by several connections.

Each thread has a separate connection and takes tasks in the order of the plan. The engine gets the
pieces in that order too: all of one table, from any thread, before the next table. Threads that are
ahead read later tables within the bounds of the queue. So the engine's thread sees a snapshot as if
one connection read it; only the order of rows within a table is undefined.

Shutdown: when the caller stops iterating, it closes the queue. That ends every wait of a thread
within a tenth of a second. Each thread closes its connection, and the caller joins them.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence

from waltap.changes.decode.row_block import RowBlock
from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.transactions.transaction import SnapshotRows
from waltap.errors import StopRequested
from waltap_postgres.snapshot.plan import ReadTask
from waltap_postgres.snapshot.tables_reader import TablesReader
from waltap_postgres.waiting import POLL_S

SAMPLED_ROWS = 8
ROW_BYTES = 64


def text_bytes(rows: Sequence[Tuple]) -> int:
    """Return the estimated bytes of text in rows, never 0."""
    if not rows:
        return ROW_BYTES
    if isinstance(rows, RowBlock):
        return rows.nbytes
    # A sample is enough: the size only bounds memory.
    step = max(1, len(rows) // SAMPLED_ROWS)
    some = [rows[at] for at in range(0, len(rows), step)]
    held = sum(
        ROW_BYTES + sum(len(value) for value in row if isinstance(value, str)) for row in some
    )
    return held * len(rows) // len(some)


# Approximate bounds of the waiting text: of the present task, and of all later tasks together.
CURRENT_BYTES, AHEAD_BYTES = 1 << 20, 3 << 20
JOIN_S = 10.0

Open = Callable[[Callable[[], bool]], contextlib.AbstractContextManager[TablesReader]]


class _ReaderClosed(Exception):
    """Report to a thread that the caller has stopped iterating."""


class ParallelReading:
    """Read ``works`` with ``threads`` connections.

    ``open_reader`` opens a thread's reader; its argument returns, during waits, whether the thread
    must end. ``stopping`` returns whether the run must end.
    """

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
        # The waiting pieces of each task with their sizes.
        self._queues = [deque[tuple[SnapshotRows, int]]() for _ in works]
        self._next = self._current = self._ahead = 0
        self._error: BaseException | None = None
        self._closed = False

    def pieces(self) -> Generator[SnapshotRows]:
        """Yield the pieces in the order of the tasks.

        Raises: the first error of a thread; StopRequested.
        """
        threads = [
            threading.Thread(target=self._run, name=f"waltap snapshot {number}", daemon=True)
            for number in range(self._count)
        ]
        try:
            for thread in threads:
                thread.start()
            for task_index, work in enumerate(self._works):
                yield from self._of(task_index, work)
        finally:
            with self._changed:
                self._closed = True
                self._changed.notify_all()
            deadline = time.monotonic() + JOIN_S
            for thread in threads:
                # The garbage collector may end an abandoned iteration in any thread, also in these.
                if thread.ident is not None and thread is not threading.current_thread():
                    thread.join(max(0.0, deadline - time.monotonic()))

    def _of(self, task_index: int, work: ReadTask) -> Iterator[SnapshotRows]:
        with self._changed:
            self._current = task_index
            self._ahead -= self._waiting(task_index)
            self._changed.notify_all()
        wanted = len(work.targets)
        while wanted:
            piece = self._next_piece(self._queues[task_index])
            work.arrived(piece)
            wanted -= piece.complete
            yield piece

    def _next_piece(self, queue: deque[tuple[SnapshotRows, int]]) -> SnapshotRows:
        with self._changed:
            while not queue:
                if self._error is not None:
                    raise self._error
                if self._stopping():
                    raise StopRequested
                self._changed.wait(POLL_S)
            piece, _ = queue.popleft()
            self._changed.notify_all()
        return piece

    def _waiting(self, task_index: int) -> int:
        return sum(size for _, size in self._queues[task_index])

    # --- in the threads -----------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with self._open(lambda: self._closed or self._stopping()) as reader:
                while (task_index := self._chosen()) is not None:
                    with contextlib.closing(reader.read(self._works[task_index])) as pieces:
                        for piece in pieces:
                            self._put(task_index, piece)
        except _ReaderClosed:
            return
        except BaseException as error:  # noqa: BLE001 - whoever iterates raises it
            with self._changed:
                if not self._closed and self._error is None:
                    self._error = error
                self._changed.notify_all()

    def _chosen(self) -> int | None:
        """Return the index of the first unfinished task."""
        with self._changed:
            while self._next < len(self._works) and not self._closed:
                work, task_index = self._works[self._next], self._next
                if work.has_free_parts:
                    return task_index
                self._next += 1
                # A task without parts belongs to one thread; the next thread gets the next task.
                if not work.parts:
                    return task_index
        return None

    def _put(self, task_index: int, piece: SnapshotRows) -> None:
        size = text_bytes(piece.rows)
        with self._changed:
            while not self._closed and not self._room(task_index):
                self._changed.wait(POLL_S)
            if self._closed:
                raise _ReaderClosed
            self._queues[task_index].append((piece, size))
            if task_index != self._current:
                self._ahead += size
            self._changed.notify_all()

    def _room(self, task_index: int) -> bool:
        if task_index == self._current:
            return self._waiting(task_index) < CURRENT_BYTES
        return self._ahead < AHEAD_BYTES
