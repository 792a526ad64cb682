"""Reads ahead: the next pieces are made in a thread while the last one is on its way to the sink."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

__all__ = ["AHEAD_BYTES", "ahead"]

AHEAD_BYTES: Final = 2 << 20
"""Bytes that are made, or on their way, while the next are read."""

T = TypeVar("T")


def ahead(make: Callable[[], Iterator[tuple[T, int]]], abandon: Callable[[], None]) -> Iterator[T]:
    """Yield what the iterator of ``make`` gives with its size in bytes; it runs in a thread of its own.

    The thread goes on while no more than `AHEAD_BYTES` wait or are with the caller, so that large pieces
    are never two at a time. What it raises is raised here, after what came before it. ``abandon`` is
    called when the caller stops early: it makes a wait of the thread end.
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
    """What is between the two threads."""

    def __init__(self) -> None:
        self._pieces: deque[tuple[T, int]] = deque()
        self._changed = threading.Condition()
        self._size = 0
        self._ended = self._left = False
        self._error: BaseException | None = None

    def fill(self, make: Callable[[], Iterator[tuple[T, int]]]) -> None:
        """Run the iterator to its end, or until nobody wants more."""
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
        """Hand a piece over and wait for room; False when nobody wants more."""
        with self._changed:
            self._pieces.append((piece, size))
            self._size += size
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._left or self._size <= AHEAD_BYTES)
            return not self._left

    def taken(self) -> Iterator[T]:
        """Yield pieces as they come."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pieces or self._ended)
                if not self._pieces:
                    break
                piece, size = self._pieces.popleft()
            yield piece
            del piece
            with self._changed:
                self._size -= size
                self._changed.notify_all()
        if self._error is not None:
            raise self._error

    def leave(self) -> bool:
        """Want no more; True where the thread has not ended by itself."""
        with self._changed:
            self._left = True
            self._pieces.clear()
            self._changed.notify_all()
            return not self._ended
