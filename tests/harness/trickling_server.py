"""HTTP servers that answer byte by byte, or by whatever a test wants."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def server(
    answer: Callable[[socket.socket], None], asked: threading.Event | None = None
) -> Iterator[str]:
    """Serve one connection by ``answer``; give its address. ``asked`` is set when somebody connects."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            taken, _ = listening.accept()
            if asked is not None:
                asked.set()
            with taken:
                answer(taken)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
        thread.join(120)
        assert not thread.is_alive(), "the client did not hang up"


def trickle(line: bytes) -> Callable[[socket.socket], None]:
    """Return a server that never comes to an end of its answer: a byte of ``line`` each 20 ms."""

    def answer(taken: socket.socket) -> None:
        taken.recv(1 << 16)
        over = threading.Event()
        try:
            taken.sendall(line)
            while not over.wait(0.02):
                taken.sendall(b"x")
        except OSError:
            return

    return answer
