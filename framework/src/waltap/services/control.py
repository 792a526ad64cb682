"""Let processes of the same user reach a running pipeline by a control socket.

Each line of the client is a JSON request. The pipeline answers each request with one line, in
order. A connection may send any number of requests.

    {"do": "signal", "type": "log", "id": "a-1", "data": {"message": "at {}"}, "wait_ms": 5000}
    {"ok": true, "state": "streaming", "id": "a-1", "taken": true}
    {"do": "status"}
    {"ok": true, "state": "streaming", "status": {"pipeline": "shop", "events": 7, …}}
    {"do": "redeliver", "ids": ["16B374D8-3"], "wait_ms": 60000}
    {"ok": true, "state": "streaming", "taken": true, "dead_letters": {"16B374D8-3": ""}}

``do`` names the kind of request. Unknown members are an error, so that a misspelled member is not
ignored. A line that is not a request gets an answer with ``ok`` false.
"""

import logging
import os
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import ClassVar, Self

import msgspec

from waltap.base.files.lock_file import holder
from waltap.errors import OffsetError, RetryVerdict
from waltap.ports.offsets.state_folder import CONTROL, LOCK

log = logging.getLogger(__name__)

# sockaddr_un holds 108 bytes on Linux and 104 elsewhere
LONGEST = 100

DESCRIPTORS = Path("/proc/self/fd")


@contextmanager
def address(path: Path) -> Iterator[str]:
    """Yield a name of ``path`` that the kernel accepts.

    The name is valid while the block lasts. Raises: OSError.
    """
    if len(os.fsencode(path)) <= LONGEST or not DESCRIPTORS.is_dir():
        yield str(path)
        return
    # the descriptor's name is short however deep the state folder is
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{DESCRIPTORS}/{folder}/{path.name}"
    finally:
        os.close(folder)


PipelineNotRunning = OffsetError.define("PipelineNotRunning", "WT-6201")
ControlSocketUnusable = OffsetError.define(
    "ControlSocketUnusable", "WT-6202", retry=RetryVerdict.RECONNECT
)
RedeliveryUndone = OffsetError.define("RedeliveryUndone", "WT-6205")

LONGEST_WAIT_MS = 3_600_000


class _Request(msgspec.Struct, frozen=True, tag_field="do", forbid_unknown_fields=True):
    """The settings of all requests."""


class SignalRequest(
    _Request, frozen=True, tag="signal", rename={"kind": "type", "identifier": "id"}
):
    """Send a signal and wait for its outcome, at most ``wait_ms``."""

    kind: str
    # "": the pipeline makes an id
    identifier: str = ""
    # an object, or JSON text as a row of the signal table has it
    data: dict[str, object] | str | None = None
    wait_ms: int = 0


class StatusRequest(_Request, frozen=True, tag="status"):
    """Ask for the status document of ``/api/status``."""

    wait_ms: ClassVar[int] = 0  # the pipeline answers at once


class RedeliveryRequest(_Request, frozen=True, tag="redeliver"):
    """Deliver dead letters between two transactions.

    The pipeline waits at most ``wait_ms`` for the moment to begin.
    """

    # ids of dead letters; empty: all dead letters
    ids: tuple[str, ...] = ()
    # deliver also dead letters that were redelivered before
    again: bool = False
    # render the change again by transforms and format, instead of sending the refused record
    re_render: bool = False
    wait_ms: int = 0


Request = SignalRequest | StatusRequest | RedeliveryRequest


class ControlAnswer(
    msgspec.Struct,
    kw_only=True,
    omit_defaults=True,
    rename={"identifier": "id", "accepted": "taken"},
):
    """The pipeline's answer to one request."""

    # whether the pipeline understood the request
    ok: bool
    # as `Engine.state`
    state: str = ""
    # id of the signal
    identifier: str = ""
    # None: the pipeline has not read the signal yet
    accepted: bool | None = None
    # why ``ok`` or ``accepted`` is False, or why a part was ignored
    reason: str = ""
    # answer to a `StatusRequest`
    status: dict[str, object] | None = None
    # answer to a `RedeliveryRequest`: id → why the sink refused it again, "" for a delivered dead letter
    dead_letters: dict[str, str] | None = None


_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_answers = msgspec.json.Decoder(ControlAnswer)


def request_of(line: bytes) -> Request:
    """Return the request in a line.

    Raises: ValueError, whose text names the fault.
    """
    try:
        request = _requests.decode(line)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error
    if not 0 <= request.wait_ms <= LONGEST_WAIT_MS:
        raise ValueError(f"wait_ms is not between 0 and {LONGEST_WAIT_MS}")
    return request


PATIENCE_S = 10.0
"""Time for an answer beyond the request's own ``wait_ms``."""


def ask(folder: Path, request: Request, *, patience_s: float = PATIENCE_S) -> ControlAnswer:
    """Send a request to a pipeline and return its answer.

    ``folder`` is the pipeline's state folder. The answer may take ``patience_s`` beyond the time
    that the request waits.

    Raises: PipelineNotRunning, ControlSocketUnusable.
    """
    pid = holder(folder / LOCK)
    path = folder / CONTROL
    if pid is None:
        # a killed process leaves its socket file behind
        dead_socket = "; the control socket there is a dead process's" if path.is_socket() else ""
        raise PipelineNotRunning(f"no process runs the pipeline of {folder}{dead_socket}")
    try:
        with socket.socket(socket.AF_UNIX) as connection, address(path) as name:
            connection.settimeout(PATIENCE_S)
            connection.connect(name)
            connection.settimeout(patience_s + request.wait_ms / 1000)
            connection.sendall(msgspec.json.encode(request) + b"\n")
            with connection.makefile("rb") as lines:
                line = lines.readline()
    except OSError as error:
        why = "time is up" if isinstance(error, TimeoutError) else error.strerror or error
        raise ControlSocketUnusable(f"process {pid} cannot be reached at {path}: {why}") from error
    try:
        return _answers.decode(line)
    except ValueError as error:
        ending = "ended without an answer" if not line else "gave an answer that is none"
        raise ControlSocketUnusable(f"process {pid}, at {path}, {ending}") from error


MOST_CLIENTS = 16
PERMISSIONS = 0o600
JOIN_S = 5.0
RETRY_S = 0.5
TOO_LONG = b'{"ok":false,"reason":"the request is longer than a signal may be"}\n'


class ControlSocket:
    """Answer the requests that clients send to a Unix socket.

    The socket at ``path`` exists while the block lasts. ``answer`` maps a request line to an answer
    line, both without the newline; it runs in the connection's thread and may wait. Lines have at
    most ``longest`` bytes. The caller must hold the pipeline's lock, because a file that an earlier
    process left at ``path`` is replaced. A pipeline runs without a socket that cannot be made; the
    log has a warning.
    """

    def __init__(self, path: Path, answer: Callable[[bytes], bytes], *, longest: int) -> None:
        self._path, self._answer, self._longest = path, answer, longest
        self._listener: socket.socket | None = None
        self._waker: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._made = 0
        self._clients: dict[socket.socket, threading.Thread] = {}

    def __enter__(self) -> Self:
        # everything that needs a file descriptor is made here: the process may have none left
        with ExitStack() as made:
            try:
                listener = made.enter_context(socket.socket(socket.AF_UNIX))
                waker, woken = map(made.enter_context, socket.socketpair())
                selector = made.enter_context(selectors.DefaultSelector())
                self._path.unlink(missing_ok=True)
                with address(self._path) as name:
                    listener.bind(name)
                self._path.chmod(PERMISSIONS)
                self._made = self._path.stat().st_ino
                # the kernel refuses connections until here, so only the owner can ever connect
                listener.listen(MOST_CLIENTS)
            except OSError as error:
                log.warning(
                    "no control socket at %s: %s; `waltap signal` does not reach this run",
                    self._path,
                    error.strerror or error,
                )
                return self
            made.pop_all()
        self._listener, self._waker = listener, waker
        self._thread = threading.Thread(
            target=self._accept,
            args=(listener, woken, selector),
            name="waltap-control",
            daemon=True,
        )
        self._thread.start()
        return self

    def __exit__(self, *_details: object) -> None:
        """End every connection, and remove the socket."""
        if self._listener is None or self._waker is None or self._thread is None:
            return
        with suppress(OSError):
            if self._path.stat().st_ino == self._made:
                self._path.unlink()  # another inode is the socket of a process that took over
        self._waker.close()
        self._thread.join(JOIN_S)
        clients = self._clients.copy()
        for client in clients:
            with suppress(OSError):
                client.shutdown(socket.SHUT_RD)  # an answer under way still goes out
        for thread in clients.values():
            thread.join(JOIN_S)
        self._listener = None

    def _accept(
        self, listener: socket.socket, woken: socket.socket, selector: selectors.BaseSelector
    ) -> None:
        failing = False
        with listener, woken, selector:
            selector.register(listener, selectors.EVENT_READ)
            selector.register(woken, selectors.EVENT_READ)
            while all(key.fileobj is not woken for key, _ in selector.select()):
                try:
                    client, _ = listener.accept()
                except OSError as error:
                    if not failing:
                        log.warning("control socket: %s", error.strerror)
                    failing = True
                    # too many open files: waiting clients are served when some were closed
                    selector.unregister(listener)
                    selector.select(RETRY_S)
                    selector.register(listener, selectors.EVENT_READ)
                    continue
                failing = False
                self._serve(client)

    def _serve(self, client: socket.socket) -> None:
        if len(self._clients) >= MOST_CLIENTS:
            client.close()
            return
        self._clients[client] = thread = threading.Thread(
            target=self._talk, args=(client,), name="waltap-control-client", daemon=True
        )
        thread.start()

    def _talk(self, client: socket.socket) -> None:
        try:
            with client, client.makefile("rb") as lines, suppress(OSError):
                while line := lines.readline(self._longest + 1):
                    if len(line) > self._longest:
                        client.sendall(TOO_LONG)
                        return
                    if line.strip():
                        client.sendall(self._answer(line.rstrip(b"\n")) + b"\n")
        finally:
            self._clients.pop(client, None)
