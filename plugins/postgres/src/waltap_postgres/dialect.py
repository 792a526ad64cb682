"""The parts in which servers that speak PostgreSQL's protocol differ, and PostgreSQL's own.

A connector for another server is the same arrangement of other parts: it subclasses a part, overrides what
differs there, and names it in a `PostgresDialect`. Nothing private is touched.
"""

from collections.abc import Callable
from dataclasses import dataclass

from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.catalog.preflight import PreflightChecks
from waltap_postgres.replication.publications import PublicationSet
from waltap_postgres.replication.slot import SlotAdmin
from waltap_postgres.replication.stream import ReplicationStream
from waltap_postgres.server_identity import ServerIdentity
from waltap_postgres.snapshot.chunk_query import PostgresChunks
from waltap_postgres.snapshot.plan import SnapshotPlanner
from waltap_postgres.snapshot.transaction import ReadingTransaction
from waltap_postgres.startup_plan import StartupPlan, StartupState, decide

__all__ = ["POSTGRESQL", "PostgresDialect"]


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
