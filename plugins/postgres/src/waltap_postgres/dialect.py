"""Replaceable parts of the connector, for servers with PostgreSQL's protocol.

A connector for another server subclasses a part, overrides its differences, and names the subclass
in a `PostgresDialect`. It uses no private names.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from waltap.changes.decode.decoder import ServerInfo
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.connection import PostgresSession
from waltap_postgres.errors import OtherConnector, PrivilegeMissing
from waltap_postgres.replication.publications import PublicationSet
from waltap_postgres.replication.slot import SlotAdmin
from waltap_postgres.replication.stream import ReplicationStream
from waltap_postgres.snapshot.chunk_query import PostgresChunks
from waltap_postgres.snapshot.plan import SnapshotPlanner
from waltap_postgres.snapshot.transaction import ReadingTransaction
from waltap_postgres.start.preflight import PreflightChecks
from waltap_postgres.start.startup_plan import StartupPlan, StartupState, decide

# The present timeline of the WAL. The control file has the timeline of the last checkpoint, which is
# the former one after a promotion.
TIMELINE_SQL = """
SELECT system_identifier::text,
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int4 END
  FROM pg_control_system()
"""


class ServerIdentity:
    """Identify a PostgreSQL server and its timelines.

    ``replication`` opens a session for replication commands.
    """

    def __init__(
        self, catalogue: PostgresCatalogue, replication: Callable[[], PostgresSession]
    ) -> None:
        self.catalogue, self.replication = catalogue, replication
        self._version: str | None = None

    def identify(self) -> ServerInfo:
        """Return the server's identity, which lasts as long as its data.

        Raises: SourceError.
        """
        # A role without the right to this SQL, and a standby, need a walsender: that takes only
        # REPLICATION.
        try:
            rows = self.catalogue.query(TIMELINE_SQL)
            system_id, timeline = rows[0]
        except PrivilegeMissing:
            timeline = None
        if timeline is None:
            with self._walsender() as session:
                system_id, timeline, *_ = session.execute("IDENTIFY_SYSTEM")[0]
        return ServerInfo(
            version_num=self.catalogue.version_num,
            version=self.version(),
            system_id=str(system_id),
            timeline=int(timeline),
        )

    @contextmanager
    def _walsender(self) -> Iterator[PostgresSession]:
        """Open a session whose end the block's end awaits."""
        # It may use the last free walsender.
        session = self.replication()
        try:
            yield session
        finally:
            session.leave()

    def refuse_others(self, connector_for: Callable[[str], str | None]) -> None:
        """Refuse a server that another connector is for.

        ``connector_for`` is `ConnectorContext.connector_for`. Raises: OtherConnector, SourceError.
        """
        version = self.version()
        other = connector_for(version)
        if other is not None:
            raise OtherConnector(f"the server says it is {version!r}", connector=other)

    def version(self) -> str:
        if self._version is None:
            ((version,),) = self.catalogue.query("SELECT version()")
            self._version = str(version)
        return self._version

    def history(self, timeline: int) -> str:
        """Return the history file of a timeline.

        Source: PostgreSQL manual, "Streaming Replication Protocol", TIMELINE_HISTORY. Raises:
        SourceError.
        """
        with self._walsender() as session:
            ((_name, content),) = session.execute(f"TIMELINE_HISTORY {timeline}")
        return content or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresDialect:
    """Name the parts of a connector.

    The properties of the connector's spec hold different defaults and the meanings of errors
    (`PostgresProperties.meanings`).
    """

    # Describes tables and types, and returns positions of WAL and transactions.
    catalogue: type[PostgresCatalogue] = PostgresCatalogue
    # Distinguishes servers.
    identity: type[ServerIdentity] = ServerIdentity
    # Reads, creates and drops slots.
    slots: type[SlotAdmin] = SlotAdmin
    # Decides which tables are streamed.
    publications: type[PublicationSet] = PublicationSet
    # Plans a start.
    decide: Callable[[StartupState], StartupPlan] = decide
    # Reads in the slot's snapshot, and detects tables that changed since.
    reading: type[ReadingTransaction] = ReadingTransaction
    # Splits tables into ranges for several readers.
    planner: type[SnapshotPlanner] = SnapshotPlanner
    # Reads incremental snapshots, and returns the visibility of a chunk.
    chunks: type[PostgresChunks] = PostgresChunks
    # Receives changes, and returns the server's progress.
    stream: type[ReplicationStream] = ReplicationStream
    # Checks the server before a start.
    preflight: type[PreflightChecks] = PreflightChecks


POSTGRESQL = PostgresDialect()
