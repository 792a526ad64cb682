"""A real YugabyteDB in the place of the double: the cluster at the address ``WALTAP_YUGABYTE`` (host:port).

Nobody has run this yet: no server could be had where it was written. Nodes need the flags
``ysql_cdc_active_replication_slot_window_ms=1000`` (slots are dropped after each test) and
``max_replication_slots=100``; the role ``yugabyte`` is a superuser.
"""

import os
from types import TracebackType
from typing import Any, Self

from tests.harness.servers.postgres import Database, Server

ADDRESS = "WALTAP_YUGABYTE"

IDENTITY = """
CREATE FUNCTION yb_replica_identity(relation regclass, identity text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('ALTER TABLE %s REPLICA IDENTITY %s', relation, identity);
END
$$
"""


def address() -> Server | None:
    """Return the server to test against, None where none is named."""
    given = os.environ.get(ADDRESS)
    if not given:
        return None
    host, _, port = given.partition(":")
    password = os.environ.get(f"{ADDRESS}_PASSWORD")
    return Server(host=host, port=int(port or 5433), user="yugabyte", password=password)


class RealYugabyte:
    """A database of its own on a cluster, with what tests ask of the double."""

    def __init__(self, server: Server, name: str) -> None:
        self.database = Database(server, name)
        self.refused: list[str] = []

    def __enter__(self) -> Self:
        self.database.server.execute(f'CREATE DATABASE "{self.database.name}"', "yugabyte")
        self.database.execute(IDENTITY)
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        server, name = self.database.server, self.database.name
        server.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            f" WHERE database = '{name}'",
            "yugabyte",
        )
        server.execute(f'DROP DATABASE "{name}"', "yugabyte")

    def properties(self) -> dict[str, Any]:
        return self.database.properties()
