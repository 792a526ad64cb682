"""The parts in which servers that speak PostgreSQL's protocol differ, and PostgreSQL's own.

A connector for another server is the same arrangement of other parts: it subclasses a part, overrides what
differs there, and names it in a `Dialect`. Nothing private is touched.
"""

from collections.abc import Callable
from dataclasses import dataclass

from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.catalog.preflight import Preflight
from waltap_postgres.decision import Decision, Situation, decide
from waltap_postgres.replication.publications import Publications
from waltap_postgres.replication.slot import Slots
from waltap_postgres.replication.stream import ReplicationStream
from waltap_postgres.server_identity import ServerIdentity
from waltap_postgres.snapshot.chunk_query import PostgresChunks
from waltap_postgres.snapshot.plan import Planner
from waltap_postgres.snapshot.transaction import ReadingTransaction

__all__ = ["POSTGRESQL", "Dialect"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
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
    slots: type[Slots] = Slots
    publications: type[Publications] = Publications
    decide: Callable[[Situation], Decision] = decide
    reading: type[ReadingTransaction] = ReadingTransaction
    planner: type[Planner] = Planner
    chunks: type[PostgresChunks] = PostgresChunks
    stream: type[ReplicationStream] = ReplicationStream
    preflight: type[Preflight] = Preflight


POSTGRESQL = Dialect(name="PostgreSQL")
