"""A PgBouncer of our own in front of a server, from the distribution's packages."""

import os
import shutil

import psycopg
from tests.harness.servers.child import LocalServer
from tests.harness.servers.postgres import Server


class PgBouncer(LocalServer):
    """Pools connections to ``server``; other settings are of its section ``[pgbouncer]``."""

    NAME = "pgbouncer"
    PACKAGES = ("pgbouncer", "libevent-2.1-7", "libc-ares2")

    def command(self, server: Server, **settings: str) -> list[str]:
        chosen = {
            "listen_addr": "127.0.0.1", "listen_port": str(self.port), "auth_type": "any",
            "unix_socket_dir": "", "logfile": str(self.folder / "pgbouncer.log"), **settings,
        }  # fmt: skip
        lines = [f"{name} = {value}" for name, value in chosen.items()]
        place = f"host={server.host} port={server.port} user={server.user}"
        file = self.folder / "pgbouncer.ini"
        file.write_text("\n".join(["[databases]", f"* = {place}", "[pgbouncer]", *lines, ""]))
        if os.getuid():
            return [*self.prepare(), str(file)]
        for path in (self.folder, file):  # it refuses to run as root
            shutil.chown(path, "nobody")
        return [*self.prepare(), "-u", "nobody", str(file)]

    def answers(self) -> bool:
        try:
            psycopg.connect(host="127.0.0.1", port=self.port, user="u", dbname="postgres").close()
        except psycopg.OperationalError:
            return False
        return True
