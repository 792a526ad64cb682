"""The HTTP server of a run: a page for people, metrics, health, status and signals."""

import base64
import hashlib
import logging
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, ClassVar, Self

import msgspec

from waltap.decode_errors import UNREADABLE
from waltap.errors import ConfigurationError, PropertyProblem
from waltap.monitor.access import RequestAccess, is_loopback, kept_token
from waltap.monitor.exposition import MetricsExposition
from waltap.monitor.history import StatusHistory
from waltap.monitor.listener import JSON, Answer, MonitorListener
from waltap.monitor.requests import MonitorRequest
from waltap.offsets.state_folder import HTTP_KEY
from waltap.pipeline.lock import unusable
from waltap.pipeline.status_document import status_document
from waltap.signals.inbox import SignalAnswer

if TYPE_CHECKING:
    from waltap.pipeline import Engine

__all__ = ["MonitorServer", "address_of"]

log = logging.getLogger(__name__)

WAIT_S = 10.0
WELL = frozenset({"checking", "standby", "snapshot", "streaming", "reconnecting", "stopping"})
READY = frozenset({"streaming", "snapshot", "standby"})
INLINE = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)

Handle = Callable[["MonitorServer", MonitorRequest], Answer]


class SignalAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"kind": "type"}):
    """The body of ``POST /api/signal``."""

    kind: str
    data: dict[str, object] = {}


def address_of(text: str) -> tuple[str, int]:
    """Return (host, port) of ``HOST:PORT`` or ``:PORT``. Raises: ConfigurationError."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        problem = PropertyProblem("waltap.http", "is no address", value=text, allowed="HOST:PORT")
        raise ConfigurationError([problem])
    return host.strip("[]") or "127.0.0.1", int(port)


class MonitorServer:
    """Answers while its block lasts; in threads of its own, which only read."""

    def __init__(self, engine: "Engine", address: str, token: str | None) -> None:
        """Raises: ConfigurationError, LibraryMissing."""
        self._engine = engine
        self._host, self._port = address_of(address)
        if token is None and not is_loopback(self._host):
            problem = PropertyProblem(
                "waltap.http.token",
                f"is missing: {self._host} can be reached from other machines",
                allowed="a secret that readers send, or waltap.http=127.0.0.1:PORT",
            )
            raise ConfigurationError([problem])
        self._access = (
            None if token is None else RequestAccess(self._host, lambda: token, open_reads=False)
        )
        self.exposition = MetricsExposition(engine.profile.name, engine.status)
        self._history = StatusHistory(engine.status)
        self._page = files("waltap.monitor").joinpath("page.html").read_bytes()
        self._listener: MonitorListener | None = None
        engine.watch()

    @property
    def port(self) -> int:
        """Return the port, also where 0 was asked for."""
        assert self._listener is not None
        return int(self._listener.server_address[1])

    def __enter__(self) -> Self:
        place = self._host, self._port
        try:
            self._listener = listener = MonitorListener(place, self._answer, _headers(self._page))
        except OSError as cause:
            problem = PropertyProblem(
                "waltap.http",
                f"cannot be listened at: {cause.strerror}",
                value=f"{self._host}:{self._port}",
            )
            raise ConfigurationError([problem]) from cause
        self._access = self._access or self._own_access()
        self._history.start()
        threading.Thread(target=listener.serve_forever, name="waltap-http", daemon=True).start()
        host = f"[{self._host}]" if ":" in self._host else self._host
        log.info("http://%s:%d/ shows the pipeline", host, self.port)
        return self

    def __exit__(self, *_details: object) -> None:
        self._history.stop()
        if self._listener is not None:
            self._listener.shutdown()
            self._listener.server_close()

    def _own_access(self) -> RequestAccess:
        """Return an access with the token of the state folder: whoever may read that, may change things.

        Raises: StateFolderUnusable.
        """
        path = self._engine.profile.engine.state_dir / self._engine.profile.name / HTTP_KEY
        try:
            kept_token(path)
        except OSError as error:
            raise unusable(path.parent, error) from error
        # the process that runs the pipeline and one that waits as a standby may both have made one
        return RequestAccess(
            self._host, partial(kept_token, path), open_reads=True, place=str(path)
        )

    # --- answers -------------------------------------------------------------------------------------

    def _answer(self, request: MonitorRequest) -> Answer:
        assert self._access is not None
        refused = self._access.refusal(
            request.method,
            request.headers,
            request.query.get("token"),
            open_to_all=request.path in {"/healthz", "/readyz"},
        )
        if refused is not None:
            return refused[0], JSON, _error(refused[1])
        answer = self._ANSWERS.get((request.method, request.path))
        if answer is None:
            return 404, JSON, _error("there is nothing here")
        return answer(self, request)

    def _show(self, _request: MonitorRequest) -> Answer:
        return 200, "text/html; charset=utf-8", self._page

    def _metrics(self, _request: MonitorRequest) -> Answer:
        return 200, "text/plain; version=0.0.4; charset=utf-8", self.exposition.text()

    def _health(self, _request: MonitorRequest) -> Answer:
        return self._state(WELL | {"stopped"})

    def _ready(self, _request: MonitorRequest) -> Answer:
        if self._engine.status().stalled:
            state = {"state": self._engine.state, "problem": "the sink does not answer"}
            return 503, JSON, msgspec.json.encode(state)
        return self._state(READY)

    def _state(self, good: frozenset[str]) -> Answer:
        state = self._engine.state
        return 200 if state in good else 503, JSON, msgspec.json.encode({"state": state})

    def _status(self, request: MonitorRequest) -> Answer:
        since = request.query.get("since", "0")
        if not (since.isascii() and since.isdigit() and len(since) < 16):
            return 400, JSON, _error("since is a time in ms")
        document = status_document(self._engine.status())
        points = self._history.points(int(since))
        document["history"] = [msgspec.to_builtins(point) for point in points]
        return 200, JSON, msgspec.json.encode(document)

    def _signal(self, request: MonitorRequest) -> Answer:
        try:
            asked = msgspec.json.decode(request.body, type=SignalAsked)
        except UNREADABLE as cause:
            return 400, JSON, _error(f"this is no signal: {cause}")
        except RecursionError:
            return 400, JSON, _error("this is no signal: it is nested too deeply")
        future: Future[SignalAnswer] = self._engine.signal(asked.kind, asked.data)
        try:
            given = future.result(WAIT_S)
        except TimeoutError:
            return 202, JSON, msgspec.json.encode({"state": self._engine.state})
        status = 200 if given.taken else 422
        return status, JSON, msgspec.json.encode({"taken": given.taken, "reason": given.reason})

    _ANSWERS: ClassVar[Mapping[tuple[str, str], "Handle"]] = {
        ("GET", "/"): _show,
        ("GET", "/metrics"): _metrics,
        ("GET", "/healthz"): _health,
        ("GET", "/readyz"): _ready,
        ("GET", "/api/status"): _status,
        ("POST", "/api/signal"): _signal,
    }


def _headers(page: bytes) -> dict[str, str]:
    """Return what every answer has: a browser runs the page's own script, and nothing else."""
    allowed = {b"script": "", b"style": ""}
    for kind, text in INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(text).digest()).decode()
        allowed[kind] += f" 'sha256-{digest}'"
    policy = (
        f"default-src 'none'; script-src{allowed[b'script']}; style-src{allowed[b'style']}; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return {
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Content-Security-Policy": policy,
    }


def _error(text: str) -> bytes:
    return msgspec.json.encode({"error": text})
