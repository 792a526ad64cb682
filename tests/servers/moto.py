"""An imitation of AWS's services (moto), in an environment of its own."""

import shutil
import socket
import tempfile
from pathlib import Path

from tests.servers.child import Child, free_ports
from tests.servers.packages import python_program

__all__ = ["Moto", "prepare"]

REQUIREMENT = "moto[server]==5.2.5"


def prepare() -> list[str]:
    """Return how to start it, fetched where it is missing. Raises: MissingProgram."""
    return python_program("moto_server", REQUIREMENT)


class Moto:
    """The services on one port of the loopback; what they hold is in memory."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        command = [*prepare(), "-H", "127.0.0.1", "-p", str(port)]
        self._child = Child(command, folder / "log")

    @classmethod
    def create(cls) -> "Moto":
        """Make one and start it. Raises: MissingProgram, ChildFailed."""
        made = cls(Path(tempfile.mkdtemp(prefix="waltap-moto-")), free_ports(1)[0])
        try:
            made.start()
        except BaseException:
            made.remove()
            raise
        return made

    @property
    def url(self) -> str:
        """Return its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._child.start()
        self._child.wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """Kill it."""
        self._child.kill()

    def remove(self) -> None:
        """End it, and delete its folder."""
        self._child.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
