"""A server that lacks what not every server of PostgreSQL's family has, and a dialect made for it.

The server is a real PostgreSQL behind two guards: a role that may not call the functions of WAL and
transactions (they are taken from everybody in its database), and a proxy that keeps what is asked over
the replication protocol. The dialect overrides public parts alone.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.harness.servers.postgres import Database

from waltap.base.property import declare
from waltap.changes.decode.decoder import ServerInfo
from waltap.errors import OffsetError, SourceError
from waltap.plugins.hookspecs import hookimpl
from waltap.ports.source.connector import Connector, ConnectorContext
from waltap.ports.specs import ConnectorSpec
from waltap_postgres.catalog.catalogue import PostgresCatalogue
from waltap_postgres.connector import PostgresConnector
from waltap_postgres.dialect import PostgresDialect, ServerIdentity
from waltap_postgres.errors import ErrorMeanings, SlotMissing
from waltap_postgres.properties import PostgresProperties
from waltap_postgres.replication.slot import SlotAdmin
from waltap_postgres.start.preflight import PreflightChecks

ROLE = "lesser"
TAKEN_AWAY = (
    "pg_current_wal_lsn()",
    "pg_current_wal_insert_lsn()",
    "pg_last_wal_replay_lsn()",
    "pg_control_system()",
    "pg_control_checkpoint()",
    "pg_export_snapshot()",
    "txid_current()",
    "txid_current_snapshot()",
    "pg_current_xact_id()",
    "pg_current_snapshot()",
)
UNKNOWN_COMMANDS = (b"IDENTIFY_SYSTEM", b"TIMELINE_HISTORY", b" EXPORT_SNAPSHOT", b"'export'")


def restrict(database: Database) -> None:
    """Make the database one of a lesser server for `ROLE`, which owns it."""
    database.execute(
        f"DO $$ BEGIN CREATE ROLE {ROLE} LOGIN REPLICATION;"
        " EXCEPTION WHEN duplicate_object THEN NULL; END $$"
    )
    database.execute(f'ALTER DATABASE "{database.name}" OWNER TO {ROLE}')
    database.execute(f"ALTER SCHEMA public OWNER TO {ROLE}")
    for function in TAKEN_AWAY:
        database.execute(f"REVOKE EXECUTE ON FUNCTION pg_catalog.{function} FROM PUBLIC")


class LesserCatalogue(PostgresCatalogue):
    shows_transactions = False

    def wal_end(self) -> int | None:
        return None

    def standby(self) -> bool:
        return False

    def transaction_id(self) -> int | None:
        return None

    def snapshot(self) -> str | None:
        return None

    def visible_until(self) -> tuple[int, bool] | None:
        return None


class LesserIdentity(ServerIdentity):
    def identify(self) -> ServerInfo:
        ((number,),) = self.catalogue.query(
            "SELECT oid::text FROM pg_database WHERE datname = current_database()"
        )
        return ServerInfo(
            version_num=self.version_num, version=self.version(), system_id=number, timeline=0
        )


class LesserSlots(SlotAdmin):
    def create_sql(self, name: str, plugin: str, *, two_phase: bool) -> str:
        return f'CREATE_REPLICATION_SLOT "{name}" LOGICAL "{plugin}" NOEXPORT_SNAPSHOT'


class LesserMeanings(ErrorMeanings):
    def of_query(self, sqlstate: str, message: str, **facts: str) -> SourceError | OffsetError:
        if sqlstate == "P0001" and "expired" in message:
            return SlotMissing(message, position="the stored position")
        return super().of_query(sqlstate, message, **facts)


class LesserProperties(PostgresProperties):
    meanings = LesserMeanings()
    port: int = declare(
        "database.port", default=5433, ge=1, le=65535, summary="Port of the server."
    )


class LesserPreflight(PreflightChecks):
    def of_server(self, checks):
        return [check for check in checks if check.name != "wal_level"]


LESSER = PostgresDialect(
    name="a lesser server",
    catalogue=LesserCatalogue,
    identity=LesserIdentity,
    slots=LesserSlots,
    preflight=LesserPreflight,
)


@dataclass
class LesserPlugin:
    made: list[PostgresConnector] = field(default_factory=list)

    @hookimpl
    def register_connectors(self) -> Iterable[ConnectorSpec]:
        def build(properties: LesserProperties, context: ConnectorContext) -> Connector:
            connector = PostgresConnector(properties, context, LESSER)
            self.made.append(connector)
            return connector

        yield ConnectorSpec(
            name="lesser", summary="A lesser server.", properties=LesserProperties, factory=build
        )
