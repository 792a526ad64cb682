"""A MariaDB server of our own, from the programs of the distribution's package."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pymysql
from tests.harness.servers.child import Child, free_ports
from tests.harness.servers.jars import MissingProgram

__all__ = ["MariaDb"]

SETTINGS = (
    "--skip-log-bin",
    "--debug-no-sync",
    "--innodb-log-file-size=16M",
    "--skip-name-resolve",
    "--innodb-flush-log-at-trx-commit=2",  # tests kill processes, never the machine
    "--innodb-buffer-pool-size=64M",
    "--character-set-server=utf8mb4",
    "--collation-server=utf8mb4_bin",
    "--max-connections=100",
)


class MariaDb:
    """A server in a folder of its own; ``port`` is on the loopback, the user root, without password."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        command = [
            _program("mariadbd"), "--no-defaults", f"--datadir={folder / 'data'}", f"--port={port}",
            "--bind-address=127.0.0.1", f"--socket={folder / 'socket'}", f"--pid-file={folder / 'pid'}",
            *_user(), *SETTINGS,
        ]  # fmt: skip
        self._child = Child(command, folder / "log")

    @classmethod
    def create(cls) -> "MariaDb":
        """Make one and start it. Raises: MissingProgram, ChildFailed."""
        install = _program("mariadb-install-db")
        folder = Path(tempfile.mkdtemp(prefix="waltap-mariadb-"))
        made = cls(folder, free_ports(1)[0])
        try:
            subprocess.run(
                [
                    *(install, "--no-defaults", f"--datadir={folder / 'data'}", *_user()),
                    *("--auth-root-authentication-method=normal", "--skip-test-db"),
                ],
                check=True,
                capture_output=True,
                timeout=300,
            )
            made.start()
        except BaseException:
            made.remove()
            raise
        return made

    def url(self, database: str) -> str:
        """Return the address of a database, as SQLAlchemy writes it."""
        return f"mariadb://root@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str | None = None) -> "pymysql.Connection[Any]":
        """Open a connection, in autocommit; the caller closes it."""
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", database=database, autocommit=True
        )

    def execute(self, statement: str, database: str | None = None) -> list[Any]:
        """Run one statement on a connection of its own; return its rows."""
        with (
            contextlib.closing(self.connect(database)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
            return list(cursor.fetchall())

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._child.start()
        self._child.wait_until(self._answers)

    def _answers(self) -> bool:
        try:
            self.connect().close()
        except pymysql.MySQLError:
            return False
        return True

    def kill(self) -> None:
        """Kill it."""
        self._child.kill()

    def remove(self) -> None:
        """End it, and delete its folder."""
        self._child.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _user() -> tuple[str, ...]:
    """Return what root must say to be allowed to run it."""
    return ("--user=root",) if os.geteuid() == 0 else ()


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise MissingProgram(f"no {name} (package mariadb-server)")
    return found
