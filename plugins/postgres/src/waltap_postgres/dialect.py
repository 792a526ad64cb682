"""The parts in which servers that speak PostgreSQL's protocol differ, and PostgreSQL's own.

A connector for another server is the same arrangement of other parts: it subclasses a part, overrides what
differs there, and names it in a `PostgresDialect`. Nothing private is touched.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from waltap.changes.decode.decoder import ServerInfo
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.catalog.preflight import PreflightChecks
from waltap_postgres.connection import PostgresSession
from waltap_postgres.errors import OtherConnector, PrivilegeMissing
from waltap_postgres.replication.publications import PublicationSet
from waltap_postgres.replication.slot import SlotAdmin
from waltap_postgres.replication.stream import ReplicationStream
from waltap_postgres.snapshot.chunk_query import PostgresChunks
from waltap_postgres.snapshot.plan import SnapshotPlanner
from waltap_postgres.snapshot.transaction import ReadingTransaction
from waltap_postgres.startup_plan import StartupPlan, StartupState, decide

__all__ = [
    "POSTGRESQL",
    "PostgresDialect",
    "ServerIdentity",
]


# Which server this is, and what its timelines were.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresDialect:
    """Which part does what. Defaults of properties that differ, and what errors mean
    (`PostgresProperties.meanings`), are in the class of properties that the connector's spec names.

    ``catalogue`` describes tables and types, and tells where WAL and transactions stand where there are
    such.
    ``identity`` tells one server from another. ``slots`` is their life. ``publications`` says what is
    streamed. ``decide`` says how a start goes on. ``reading`` begins in the snapshot that came with the
    slot, and sees where tables were changed meanwhile. ``planner`` cuts tables into ranges for several
    readers. ``chunks`` reads incremental snapshots, and says what a chunk has seen. ``stream``
    says of an open stream how far the server has come. ``preflight`` checks
    all that before a start.
    """

    name: str
    catalogue: type[PostgresCatalogue] = PostgresCatalogue
    identity: type[ServerIdentity] = ServerIdentity
    slots: type[SlotAdmin] = SlotAdmin
    publications: type[PublicationSet] = PublicationSet
    decide: Callable[[StartupState], StartupPlan] = decide
    reading: type[ReadingTransaction] = ReadingTransaction
    planner: type[SnapshotPlanner] = SnapshotPlanner
    chunks: type[PostgresChunks] = PostgresChunks
    stream: type[ReplicationStream] = ReplicationStream
    preflight: type[PreflightChecks] = PreflightChecks


POSTGRESQL = PostgresDialect(name="PostgreSQL")
