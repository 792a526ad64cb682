"""Read the next pieces in a thread while the caller delivers one."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

__all__ = ["AHEAD_BYTES", "ahead"]

# Bytes that wait or are with the caller while the thread makes more.
AHEAD_BYTES: Final = 2 << 20

T = TypeVar("T")


def ahead(make: Callable[[], Iterator[tuple[T, int]]], abandon: Callable[[], None]) -> Iterator[T]:
    """Yield the items of the iterator that ``make`` returns.

    The iterator runs in a thread and adds each item's size in bytes. The thread continues while at
    most `AHEAD_BYTES` wait or are with the caller, so that there are never two large pieces. Its
    error is raised here after its items. An early stop calls ``abandon``, which ends the thread's
    wait.
    """
    made = _ReadAheadQueue[T]()
    thread = threading.Thread(target=made.fill, args=(make,), name="waltap-snapshot", daemon=True)
    thread.start()
    try:
        yield from made.taken()
    finally:
        if made.leave():
            abandon()
        thread.join()


class _ReadAheadQueue(Generic[T]):
    """Pass items between the two threads."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[T, int]] = deque()
        self._changed = threading.Condition()
        self._size = 0
        self._ended = self._left = False
        self._error: BaseException | None = None

    def fill(self, make: Callable[[], Iterator[tuple[T, int]]]) -> None:
        """Run the iterator to its end, or until the caller stops."""
        error: BaseException | None = None
        try:
            for piece, size in make():
                if not self._add(piece, size):
                    break
        except BaseException as raised:  # noqa: BLE001 - raised again by `taken`
            error = raised
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def _add(self, piece: T, size: int) -> bool:
        """Add an item and wait for room; False after the caller's stop."""
        with self._changed:
            self._pieces.append((piece, size))
            self._size += size
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._left or self._size <= AHEAD_BYTES)
            return not self._left

    def taken(self) -> Iterator[T]:
        """Yield items as they arrive."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pieces or self._ended)
                if not self._pieces:
                    break
                piece, size = self._pieces.popleft()
            yield piece
            # Release its memory before the thread makes another.
            del piece
            with self._changed:
                self._size -= size
                self._changed.notify_all()
        if self._error is not None:
            raise self._error

    def leave(self) -> bool:
        """Stop the thread and return whether it was still running."""
        with self._changed:
            self._left = True
            self._pieces.clear()
            self._changed.notify_all()
            return not self._ended
