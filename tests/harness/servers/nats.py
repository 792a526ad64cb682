"""A NATS server with JetStream of our own, from the distribution's package."""

import json
import socket
from collections.abc import Sequence
from typing import Any

from tests.harness.servers.child import LocalServer


class NatsServer(LocalServer):
    """A server that asks for ``user`` and ``password`` where they are given.

    One of a cluster listens for the others at ``own``; ``routes`` are all such ports.
    """

    NAME = "nats"
    PACKAGES = ("nats-server",)

    def command(
        self, user: str = "", password: str = "", own: int = 0, routes: Sequence[int] = ()
    ) -> list[str]:
        settings = self.folder / "settings.conf"
        more: dict[str, Any] = {"server_name": f"at-{self.port}"}
        if user:
            more["authorization"] = {"user": user, "password": password}
        if own:
            others = [f"nats://127.0.0.1:{port}" for port in routes]
            more["cluster"] = {"name": "all", "host": "127.0.0.1", "port": own, "routes": others}
        text = {
            "host": "127.0.0.1",
            "port": self.port,
            "jetstream": {"store_dir": str(self.folder / "store"), "max_mem": 1 << 28},
            **more,
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
