"""Encode and decode the lines of a control socket. Sans-IO.

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

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from waltap.errors import OffsetError, RetryVerdict

# Address Unix sockets whose paths may be too long.

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


def unix_socket() -> socket.socket:
    """Return a new Unix stream socket."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)


# Errors of commands that do not reach a pipeline.


PipelineNotRunning = OffsetError.define(
    "PipelineNotRunning",
    "WT-6201",
    "No process runs the named pipeline.",
    "Start it with `waltap run FILE`, on this machine, and repeat the command. The profile must "
    "have the same `name` and `waltap.state.dir` as the running process.",
)
ControlSocketUnusable = OffsetError.define(
    "ControlSocketUnusable",
    "WT-6202",
    "A process runs the pipeline, and its control socket does not answer.",
    "Only the user that runs the pipeline may use the socket, and only on the same machine. If "
    "the run has just started, try again; its log has messages about the control socket. You can "
    "also send signals by the table of signal.data.collection, or by the file of signal.file.",
    retry=RetryVerdict.RECONNECT,
)
RedeliveryUndone = OffsetError.define(
    "RedeliveryUndone",
    "WT-6205",
    "A running pipeline did not deliver all of the requested dead letters.",
    "Dead letters listed as delivered were delivered. See the run's log, correct the cause, and repeat "
    "the command: it skips the delivered ones. --wait SECONDS waits for a snapshot or an absent "
    "sink; without a running pipeline the command itself redelivers.",
)


LONGEST_WAIT_MS = 3_600_000


class SignalRequest(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="signal",
    tag_field="do",
    rename={"kind": "type", "identifier": "id"},
    forbid_unknown_fields=True,
):
    """Send a signal and wait for its outcome, at most ``wait_ms``."""

    kind: str
    # "": the pipeline makes an id
    identifier: str = ""
    # an object, or JSON text as a row of the signal table has it
    data: dict[str, object] | str | None = None
    wait_ms: int = 0

    @property
    def text(self) -> str:
        """Return the data as JSON text."""
        if isinstance(self.data, str):
            return self.data
        return "" if self.data is None else msgspec.json.encode(self.data).decode()


class StatusRequest(
    msgspec.Struct, frozen=True, tag="status", tag_field="do", forbid_unknown_fields=True
):
    """Ask for the status document of ``/api/status``."""

    @property
    def wait_ms(self) -> int:
        """Return 0: the pipeline answers at once."""
        return 0


class RedeliveryRequest(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    tag="redeliver",
    tag_field="do",
    forbid_unknown_fields=True,
):
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


class ControlAnswer(msgspec.Struct, kw_only=True, omit_defaults=True, rename={"identifier": "id"}):
    """The pipeline's answer to one request."""

    # whether the pipeline understood the request
    ok: bool
    # as `Engine.state`
    state: str = ""
    # id of the signal
    identifier: str = ""
    # None: the pipeline has not read the signal yet
    taken: bool | None = None
    # why ``ok`` or ``taken`` is False
    reason: str = ""
    # answer to a `StatusRequest`
    status: dict[str, object] | None = None
    # answer to a `RedeliveryRequest`: id → why the sink refused it again, "" for a delivered dead letter
    dead_letters: dict[str, str] | None = None


_requests: msgspec.json.Decoder[Request] = msgspec.json.Decoder(Request)
_answers = msgspec.json.Decoder(ControlAnswer)


def asked(request: Request) -> bytes:
    """Return a request as one JSON line."""
    return msgspec.json.encode(request) + b"\n"


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


def answered(line: bytes) -> ControlAnswer:
    """Return the answer in a line. Raises: ValueError."""
    return _answers.decode(line)
