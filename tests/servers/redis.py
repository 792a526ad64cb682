"""A Redis server of our own, from the distribution's packages."""

import shutil
import tempfile
from pathlib import Path
from typing import Any

import redis

from tests.servers.child import Child, free_ports
from tests.servers.packages import packaged

__all__ = ["RedisServer", "prepare"]

PACKAGES = ("redis-server", "redis-tools", "libjemalloc2", "liblzf1")


def prepare() -> list[str]:
    """Return how to start it, fetched where it is missing. Raises: MissingProgram."""
    return packaged("redis-server", PACKAGES)


class RedisServer:
    """A server that keeps a log of what it is told; ``port`` is on the loopback."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        command = [
            *prepare(), "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder),
            "--appendonly", "yes", "--appendfsync", "always", "--save", "",
        ]  # fmt: skip
        self._child = Child(command, folder / "log")

    @classmethod
    def create(cls) -> "RedisServer":
        """Make one and start it. Raises: MissingProgram, ChildFailed."""
        made = cls(Path(tempfile.mkdtemp(prefix="waltap-redis-")), free_ports(1)[0])
        try:
            made.start()
        except BaseException:
            made.remove()
            raise
        return made

    @property
    def address(self) -> str:
        """Return host and port."""
        return f"127.0.0.1:{self.port}"

    def client(self, database: int = 0) -> Any:
        """Return a client; the caller closes it."""
        return redis.Redis(port=self.port, db=database)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._child.start()
        self._child.wait_until(self._answers)

    def _answers(self) -> bool:
        client = self.client()
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()

    def kill(self) -> None:
        """Kill it."""
        self._child.kill()

    def remove(self) -> None:
        """End it, and delete its folder."""
        self._child.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
