"""A NATS server with JetStream of our own, from the distribution's package."""

import json
import socket

from tests.harness.servers.child import LocalServer


class NatsServer(LocalServer):
    """A server that asks for ``user`` and ``password`` where they are given."""

    NAME = "nats"
    PACKAGES = ("nats-server",)

    def command(self, user: str = "", password: str = "") -> list[str]:
        settings = self.folder / "settings.conf"
        login = {"authorization": {"user": user, "password": password}} if user else {}
        text = {
            "host": "127.0.0.1",
            "port": self.port,
            "jetstream": {"store_dir": str(self.folder / "store"), "max_mem": 1 << 28},
            **login,
        }
        settings.write_text(json.dumps(text))
        return [*self.prepare(), "-c", str(settings)]

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as made:
                return made.recv(4) == b"INFO"
        except OSError:
            return False
