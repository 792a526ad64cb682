"""A real HTTP server that takes what is posted to it, as the receiver of a webhook does."""

import json
import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from waltap.ports.notifications import Notification


def notification_of(document: dict[str, Any]) -> Notification:
    fields = {name: document[name] for name in ("aggregate_type", "additional_data", "timestamp")}
    return Notification(identifier=document["id"], kind=document["type"], **fields)


class Receiver:
    """Keeps the headers and bodies of what it took; the path is a header, too. ``answers`` are given first, (status, headers) each or
    None to hang up; then it takes everything, with ``replies``, as long as there are some. ``judge`` gives the status for a body. Until `start` its port is held and refuses connections."""

    def __init__(self, *, started: bool = True) -> None:
        self.taken: list[tuple[dict[str, str], bytes]] = []
        self.refused: list[tuple[dict[str, str], bytes]] = []
        self.answers: deque[tuple[int, dict[str, str]] | None] = deque()
        self.replies: deque[bytes] = deque()
        self.judge: Callable[[bytes], int] = lambda _body: 200
        self.hold = threading.Event()
        self.hold.set()
        self._thread: threading.Thread | None = None
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver._received(self)

            do_GET = do_PUT = do_POST

            def log_message(self, *_args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
        self._server.daemon_threads = True
        self._server.server_bind()
        if started:
            self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}"

    @property
    def url(self) -> str:
        return f"http://{self.address}/hook?token=hidden-7"

    def start(self) -> None:
        self._server.server_activate()
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def stop(self) -> None:
        if self._thread is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_why: object) -> None:
        self.hold.set()
        self.stop()

    def documents(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.taken]

    def notifications(self) -> list[Notification]:
        return [notification_of(document) for document in self.documents()]

    def _received(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["content-length"]))
        headers = {name.lower(): value for name, value in request.headers.items()}
        came = {**headers, ":path": request.path}, body
        self.hold.wait(120)
        answer = self.answers.popleft() if self.answers else (self.judge(body), {})
        if answer is None:
            self.refused.append(came)
            request.connection.close()
            request.close_connection = True
            return
        status, headers = answer
        (self.taken if status < 300 else self.refused).append(came)
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        reply = self.replies.popleft() if self.replies and status < 300 else b""
        request.send_header("Content-Length", str(len(reply)))
        request.end_headers()
        request.wfile.write(reply)
