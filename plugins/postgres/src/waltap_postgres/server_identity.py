"""Which server this is, and what its timelines were."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from waltap.decode.decoder import ServerInfo
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.connection import PostgresSession
from waltap_postgres.errors import OtherConnector, PrivilegeMissing

__all__ = ["ServerIdentity"]


TIMELINE_SQL = """
SELECT system_identifier::text,
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int4 END
  FROM pg_control_system()
"""
"""The timeline that WAL is written on. The control file names that of the last checkpoint: after a
promotion the former one, until there is another."""


class ServerIdentity:
    """Asks a PostgreSQL server. ``replication`` opens a session for replication commands."""

    def __init__(
        self,
        catalogue: PostgresCatalogue,
        version_num: int,
        replication: Callable[[], PostgresSession],
    ) -> None:
        self.catalogue, self.version_num = catalogue, version_num
        self.replication = replication

    def identify(self) -> ServerInfo:
        """Return what tells this server from others; the same as long as its data is. Raises: SourceError.

        By SQL; where a role may not ask that, and of a standby, by a walsender: REPLICATION is enough.
        """
        try:
            rows = self.catalogue.query(TIMELINE_SQL)
            system_id, timeline = rows[0]
        except PrivilegeMissing:
            timeline = None
        if timeline is None:
            with self._walsender() as session:
                system_id, timeline, *_ = session.execute("IDENTIFY_SYSTEM")[0]
        return ServerInfo(
            version_num=self.version_num,
            version=self.version(),
            system_id=str(system_id),
            timeline=int(timeline),
        )

    @contextmanager
    def _walsender(self) -> Iterator[PostgresSession]:
        """Return a session that is over, for the server too, behind its block: a place may be its last."""
        session = self.replication()
        try:
            yield session
        finally:
            session.leave()

    def refuse_others(self, meant_for: Callable[[str], str | None]) -> None:
        """Raises: OtherConnector for a server that, by its version, another connector is for
        (`ConnectorContext.meant_for`); SourceError."""
        version = self.version()
        other = meant_for(version)
        if other is not None:
            raise OtherConnector(f"the server says it is {version!r}", connector=other)

    def version(self) -> str:
        """Return what the server says of its version."""
        ((version,),) = self.catalogue.query("SELECT version()")
        return str(version)

    def history(self, timeline: int) -> str:
        """Return the history file of a timeline. Raises: SourceError.

        Source: PostgreSQL manual, "Streaming Replication Protocol", TIMELINE_HISTORY.
        """
        with self._walsender() as session:
            ((_name, content),) = session.execute(f"TIMELINE_HISTORY {timeline}")
        return content or ""
