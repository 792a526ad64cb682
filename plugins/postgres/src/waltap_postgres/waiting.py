"""Wait for the server, until a stop or dead link.

Nothing in this package blocks in libpq or in the socket. A `ServerWait` checks every tenth of a
second whether the run must stop. After half of the receive timeout without data, it asks the server
over another connection whether it is busy (`connection.busy`). A lock, a long query or a large
transaction are reasons to wait. A server that waits for the client, or does not answer, is none.
"""

import contextlib
import ctypes
import math
import select
import sys
import time
from collections.abc import Callable, Generator
from typing import Any, TypeVar

import psycopg
from psycopg import pq
from psycopg.pq.misc import find_libpq_full_path
from psycopg.waiting import READY_R, READY_W, WAIT_R, WAIT_W, Wait

from waltap.errors import ConnectionLost, StopRequested

READ, WRITE = select.POLLIN, select.POLLOUT
POLL_S = 0.1
# A query may run for so long after a stop; the queries of a clean end take milliseconds.
STOP_WAIT_S = 0.5
# The same for the clean end itself, which drops a slot or a publication on a slow server.
END_WAIT_S = 5.0
CANCEL_S = 0.5

# psycopg lacks this function of libpq. Its extension module finds it in the libpq that it links to.
PQERRORS_DEFAULT, PQERRORS_VERBOSE = 1, 2
_binding = sys.modules[pq.PGconn.__module__].__file__
_library = find_libpq_full_path() if pq.__impl__ == "python" else _binding
_set_verbosity: Any = None  # a build that hides it gives texts without SQLSTATE
with contextlib.suppress(OSError, AttributeError):
    _set_verbosity = ctypes.CDLL(_library).PQsetErrorVerbosity
    _set_verbosity.argtypes = ctypes.c_void_p, ctypes.c_int

T = TypeVar("T")
Busy = Callable[["pq.abc.PGconn"], bool]


class ServerWaits:
    """Hold the rules for all waits of one connector.

    ``stopping`` returns whether the run must end. ``timeout_s`` is the receive timeout, 0 for none.
    ``busy`` asks the server over another connection whether it works for a connection.
    ``deadline_s`` ends every wait, also for a busy server.
    """

    def __init__(
        self,
        stopping: Callable[[], bool] = lambda: False,
        *,
        timeout_s: float = 0.0,
        busy: Busy | None = None,
        deadline_s: float | None = None,
    ) -> None:
        self.stopping, self.timeout_s, self.deadline_s = stopping, timeout_s, deadline_s
        self.busy = busy
        self._wait_s = STOP_WAIT_S
        self._stop_seen: float | None = None
        self.connection_class = watched(self)

    def ends(self) -> None:
        """Wait longer from now on: these queries belong to the clean end."""
        self._wait_s = END_WAIT_S

    def check(self, began: float) -> None:
        """End a wait that began at ``began`` after a stop. Raises: StopRequested."""
        if not self.stopping():
            return
        now = time.monotonic()
        if self._stop_seen is None:
            self._stop_seen = now
        if now - max(began, self._stop_seen) >= self._wait_s:
            raise StopRequested

    def waiting(self, pgconn: "pq.abc.PGconn") -> "ServerWait":
        return ServerWait(self, pgconn)


class ServerWait:
    """Wait for an answer of the server, or for its next bytes."""

    __slots__ = ("_asked", "_began", "_heard", "_pgconn", "_watch")

    def __init__(self, watch: ServerWaits, pgconn: "pq.abc.PGconn") -> None:
        self._watch, self._pgconn = watch, pgconn
        self._began = self._heard = time.monotonic()
        self._asked = False

    def ready(self, fd: int, events: int) -> int:
        """Return the ready ``events``, 0 after 0.1 s.

        The events are READ and WRITE. Raises: StopRequested, ConnectionLost.
        """
        poll = select.poll()
        poll.register(fd, events)
        found = poll.poll(POLL_S * 1000)
        now = time.monotonic()
        if found:
            mask = found[0][1]
            self._heard, self._asked = now, False
            # A read shows an error or the end of the connection.
            return mask & events or events
        watch = self._watch
        watch.check(self._began)
        if watch.deadline_s is not None and now - self._began >= watch.deadline_s:
            raise ConnectionLost(f"the server has not answered for {watch.deadline_s:.0f} s")
        if watch.timeout_s and watch.busy is not None:
            self._ask(now, watch.timeout_s, watch.busy)
        return 0

    def _ask(self, now: float, timeout_s: float, busy: Busy) -> None:
        """Ask a busy server at half and full timeout."""
        silence = now - self._heard
        if silence < (timeout_s if self._asked else timeout_s / 2):
            return
        if busy(self._pgconn):
            self._heard, self._asked = time.monotonic(), False
        elif not self._asked and time.monotonic() - self._heard < timeout_s:
            self._asked = True
        elif not readable(self._pgconn.socket):
            raise ConnectionLost(f"nothing has come from the server for {timeout_s:g} s")


def readable(fd: int) -> bool:
    """Return whether the socket has data, which may have just arrived."""
    poll = select.poll()
    poll.register(fd, READ)
    return bool(poll.poll(0))


def watched(watch: ServerWaits) -> "type[psycopg.Connection[tuple[Any, ...]]]":
    """Return the class of connections that always wait by `ServerWait`."""

    class WatchedConnection(psycopg.Connection[tuple[Any, ...]]):
        @classmethod
        def _connect_gen(cls, conninfo: str = "", *, timeout: float = 0.0) -> Any:
            # psycopg 3.2 leaves the timeout to this method, 3.3 to its caller.
            return cls((yield from _connecting(conninfo, watch, timeout or math.inf)))

        def wait(self, gen: Any, interval: float = POLL_S, timeout: float | None = None) -> Any:
            if timeout is not None:
                return super().wait(gen, interval, timeout)
            try:
                return _drive(gen, self.pgconn.socket, watch.waiting(self.pgconn))
            except StopRequested:
                self._give_up(gen)
                raise
            except ConnectionLost:
                self.pgconn.finish()
                raise

        def _give_up(self, gen: Any) -> None:
            """Cancel the query, or close the connection if that takes long."""
            cancel(self)
            with contextlib.suppress(psycopg.Error, ConnectionLost):
                _drive(
                    gen, self.pgconn.socket, ServerWaits(deadline_s=CANCEL_S).waiting(self.pgconn)
                )
            if self.pgconn.transaction_status == pq.TransactionStatus.ACTIVE:
                self.pgconn.finish()

    return WatchedConnection


def cancel(connection: "psycopg.Connection[Any]") -> None:
    """Ask the server to cancel the running query."""
    # The request uses a connection of its own, which may hang, too. libpq before 17 would block the
    # whole process for that time, so it does not send one.
    if psycopg.capabilities.has_cancel_safe():
        with contextlib.suppress(psycopg.Error):
            connection.cancel_safe(timeout=CANCEL_S)


def _drive(gen: Generator[Any, Any, T], fd: int, waiting: ServerWait) -> T:
    """Run a psycopg generator to its end.

    It yields the events that it waits for, and receives the events that are ready.
    """
    try:
        wanted = next(gen)
        while True:
            events = (READ if wanted & WAIT_R else 0) | (WRITE if wanted & WAIT_W else 0)
            found = waiting.ready(fd, events)
            ready = (READY_R if found & READ else 0) | (READY_W if found & WRITE else 0)
            wanted = gen.send(ready)
    except StopIteration as end:
        value: T = end.value
        return value


def _connecting(conninfo: str, watch: ServerWaits, timeout_s: float) -> Generator[Any, Any, Any]:
    """Yield the waits for a new connection, and end it at a stop.

    Its error has the SQLSTATE, unlike psycopg's.
    """
    began = time.monotonic()
    pgconn: Any = pq.PGconn.connect_start(conninfo.encode())
    if _set_verbosity is not None:
        _set_verbosity(pgconn.pgconn_ptr, PQERRORS_VERBOSE)
    while (status := pgconn.connect_poll()) != pq.PollingStatus.OK:
        if status == pq.PollingStatus.FAILED:
            text = pgconn.error_message.decode(errors="replace")
            pgconn.finish()
            raise psycopg.OperationalError(text)
        while not (yield pgconn.socket, Wait(status)):
            watch.check(began)
            if time.monotonic() - began >= timeout_s:
                raise psycopg.errors.ConnectionTimeout("connection timeout expired")
    if _set_verbosity is not None:
        _set_verbosity(pgconn.pgconn_ptr, PQERRORS_DEFAULT)
    pgconn.nonblocking = 1
    return pgconn


def pause(seconds: float, *, stopping: Callable[[], bool]) -> None:
    """Wait for ``seconds``. Raises: StopRequested."""
    deadline = time.monotonic() + seconds
    while (remaining := deadline - time.monotonic()) > 0:
        if stopping():
            raise StopRequested
        time.sleep(min(remaining, POLL_S))
