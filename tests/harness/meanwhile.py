"""Work beside a test, in threads of its own; what such work fails with, the test fails with."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

WAIT_S = 240.0


class RoundPortions:
    """Give workers rounds in portions that they share, so that a slow pipeline is never far behind them."""

    def __init__(self, size: int) -> None:
        self._size, self._left = size, threading.Semaphore(0)

    def __call__(self, ended: threading.Event) -> Iterator[None]:
        while not ended.is_set():
            if self._left.acquire(timeout=0.1):
                yield

    def add(self) -> None:
        self._left.release(self._size)


def in_background(work: Callable[..., Any], *given: object) -> "Future[Any]":
    """Begin ``work``, whose result comes; the end of the process waits for none."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(work(*given))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


@contextmanager
def meanwhile(
    *works: Callable[[threading.Event], object], within: float = WAIT_S
) -> Iterator["list[Future[Any]]"]:
    """Do ``works`` while the block lasts; each gets the event that ends it, and then has ``within`` seconds."""
    stop = threading.Event()
    done = [in_background(work, stop) for work in works]
    try:
        yield done
    finally:
        stop.set()
        wait(done, within)
        for each in done:  # also where the block failed, perhaps for want of it
            each.result(0)
