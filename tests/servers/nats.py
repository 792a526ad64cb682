"""A NATS server with JetStream of our own, from the distribution's package."""

import json
import shutil
import socket
import tempfile
from pathlib import Path

from tests.servers.child import Child, free_ports
from tests.servers.packages import packaged

__all__ = ["NatsServer", "prepare"]


def prepare() -> list[str]:
    """Return how to start it, fetched where it is missing. Raises: MissingProgram."""
    return packaged("nats-server", ["nats-server"])


class NatsServer:
    """A server on the loopback; ``user`` and ``password`` are asked for where they are given."""

    def __init__(self, folder: Path, port: int, user: str, password: str) -> None:
        self.folder, self.port = folder, port
        settings = folder / "settings.conf"
        login = {"authorization": {"user": user, "password": password}} if user else {}
        text = {
            "host": "127.0.0.1",
            "port": port,
            "jetstream": {"store_dir": str(folder / "store"), "max_mem": 1 << 28},
            **login,
        }
        settings.write_text(json.dumps(text))
        self._child = Child([*prepare(), "-c", str(settings)], folder / "log")

    @classmethod
    def create(cls, user: str = "", password: str = "") -> "NatsServer":
        """Make one and start it. Raises: MissingProgram, ChildFailed."""
        folder = Path(tempfile.mkdtemp(prefix="waltap-nats-"))
        made = cls(folder, free_ports(1)[0], user, password)
        try:
            made.start()
        except BaseException:
            made.remove()
            raise
        return made

    @property
    def url(self) -> str:
        """Return its address."""
        return f"nats://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._child.start()
        self._child.wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as made:
                return made.recv(4) == b"INFO"
        except OSError:
            return False

    def kill(self) -> None:
        """Kill it."""
        self._child.kill()

    def remove(self) -> None:
        """End it, and delete its folder."""
        self._child.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
