"""A MariaDB server of our own, from the programs of the distribution's package."""

import contextlib
import os
import shutil
import subprocess
from typing import Any

import pymysql
from tests.harness.servers.child import LocalServer
from tests.harness.servers.jars import MissingProgram

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


class MariaDb(LocalServer):
    """A server in a folder of its own; ``port`` is on the loopback, the user root, without password."""

    NAME = "mariadb"

    def command(self) -> list[str]:
        # A server that starts removes all temporary tables in its folder for them.
        own = f"--datadir={self.folder / 'data'}", f"--tmpdir={self.folder}"
        install = [_program("mariadb-install-db"), "--no-defaults", *own, *_user()]
        more = ("--auth-root-authentication-method=normal", "--skip-test-db")
        subprocess.run([*install, *more], check=True, capture_output=True, timeout=300)
        return [
            _program("mariadbd"), "--no-defaults", *own, f"--port={self.port}",
            "--bind-address=127.0.0.1", f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}", *_user(), *SETTINGS,
        ]  # fmt: skip

    def url(self, database: str) -> str:
        return f"mariadb://root@127.0.0.1:{self.port}/{database}"

    def connect(self, database: str | None = None) -> "pymysql.Connection[Any]":
        """Open a connection, in autocommit; the caller closes it."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user="root",
            database=database,
            autocommit=True,
            connect_timeout=60,
            ssl_disabled=True,  # else each connection reads all certificates: 23 ms of CPU
        )

    def execute(self, statement: str, database: str | None = None) -> list[Any]:
        """Run one statement on a connection of its own; return its rows."""
        with (
            contextlib.closing(self.connect(database)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)
            return list(cursor.fetchall())

    def answers(self) -> bool:
        try:
            self.connect().close()
        except pymysql.MySQLError:
            return False
        return True


def _user() -> tuple[str, ...]:
    return ("--user=root",) if os.geteuid() == 0 else ()


def _program(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise MissingProgram(f"no {name} (package mariadb-server)")
    return found
