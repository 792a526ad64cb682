"""The end of a process whose sink does not return from a call: a signal handler runs in the main thread,
which may be inside it."""

import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from waltap.pipeline import Engine

__all__ = ["ended_at_last"]

log = logging.getLogger(__name__)

LOOK_S: Final = 0.1
ENDS: Final = frozenset({signal.SIGINT, signal.SIGTERM})


@contextmanager
def ended_at_last(engine: "Engine") -> Iterator[None]:
    """End the process where a signal asked for that and the sink holds it longer than
    ``waltap.stop.timeout.ms``, while the block lasts. A crash loses nothing, and neither does this."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    over = threading.Event()
    before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
    thread = threading.Thread(target=_look_on, args=(engine, ours, over), name="waltap-end")
    thread.daemon = True
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        over.set()
        theirs.close()
        thread.join()
        ours.close()


def _look_on(engine: "Engine", signals: socket.socket, over: threading.Event) -> None:
    asked: float | None = None
    while not over.is_set():
        readable, _, _ = select.select([signals], [], [], None if asked is None else LOOK_S)
        if readable:
            numbers = signals.recv(64)
            if not numbers:
                return
            if asked is None and ENDS.intersection(numbers):
                engine.stop()
                asked = time.monotonic()
        longest = engine.profile.engine.stop_timeout_ms / 1000
        held = None if asked is None or not longest else engine.held_by_sink(asked)
        if held is not None and held[1] >= longest:
            _end(*held)


def _end(what: str, seconds: float) -> None:
    """End the process now; its locks go with it."""
    from waltap.cli.failure import exit_code
    from waltap.pipeline.sink_calls import SinkHeld

    error = SinkHeld(
        f"a stop was asked for, and the sink has not returned from {what} for {seconds:.0f} s"
    )
    log.error("%s", error)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(exit_code(error))
