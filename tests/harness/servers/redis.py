"""A Redis server of our own, from the distribution's packages."""

from typing import Any

import redis
from tests.harness.servers.child import LocalServer


class RedisServer(LocalServer):
    """A server that keeps a log of what it is reported."""

    NAME = "redis"
    PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")

    def command(self) -> list[str]:
        return [
            *self.prepare(), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder),
            "--appendonly", "yes", "--appendfsync", "always", "--save", "",
        ]  # fmt: skip

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def client(self, database: int = 0) -> Any:
        """Return a client; the caller closes it."""
        return redis.Redis(port=self.port, db=database)

    def answers(self) -> bool:
        client = self.client()
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()
