"""Work beside a test, in threads of its own; what such work fails with, the test fails with."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from typing import Any

WAIT_S = 240.0


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
