"""A PgBouncer of our own in front of a server, from the distribution's packages."""

import os
import shutil
import tempfile
from pathlib import Path

import psycopg
from tests.harness.servers.child import Child, free_ports
from tests.harness.servers.packages import packaged
from tests.harness.servers.postgres import Server

__all__ = ["PgBouncer", "prepare"]

PACKAGES = ("pgbouncer", "libevent-2.1-7", "libc-ares2")


def prepare() -> list[str]:
    """Return how to start it, fetched where it is missing. Raises: MissingProgram."""
    return packaged("pgbouncer", PACKAGES)


class PgBouncer:
    """Pools connections to ``server``; ``settings`` are of its section ``[pgbouncer]``."""

    def __init__(self, server: Server, **settings: str) -> None:
        """Start it. Raises: MissingProgram, ChildFailed."""
        self.port = free_ports(1)[0]
        self._folder = Path(tempfile.mkdtemp(prefix="waltap-pgbouncer-"))
        chosen = {
            "listen_addr": "127.0.0.1", "listen_port": str(self.port), "auth_type": "any",
            "unix_socket_dir": "", "logfile": str(self._folder / "pgbouncer.log"), **settings,
        }  # fmt: skip
        lines = [f"{name} = {value}" for name, value in chosen.items()]
        place = f"host={server.host} port={server.port} user={server.user}"
        file = self._folder / "pgbouncer.ini"
        file.write_text("\n".join(["[databases]", f"* = {place}", "[pgbouncer]", *lines, ""]))
        command = [*prepare(), str(file)]
        if os.getuid() == 0:  # it refuses to run as root
            for path in (self._folder, file):
                shutil.chown(path, "nobody")
            command = [*command[:-1], "-u", "nobody", str(file)]
        self._child = Child(command, self._folder / "log")
        try:
            self._child.start()
            self._child.wait_until(self._answers)
        except BaseException:
            self.remove()
            raise

    def _answers(self) -> bool:
        try:
            psycopg.connect(host="127.0.0.1", port=self.port, user="u", dbname="postgres").close()
        except psycopg.OperationalError:
            return False
        return True

    def remove(self) -> None:
        """End it."""
        self._child.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
