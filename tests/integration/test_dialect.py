"""Another dialect: a server without WAL position, IDENTIFY_SYSTEM, transaction ids and exported snapshots.

Whatever it lacks is refused (functions) or kept and looked through (replication commands), so that
passing means that it was never asked for.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.harness.pipeline import PipelineRig
from tests.harness.proxy import Proxy
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


pytestmark = pytest.mark.needs_postgres


class Asked:
    """What the engine sends to the server; ``react`` gets it before the server does."""

    def __init__(self, database: Database) -> None:
        self.said: list[bytes] = []
        self.react: Callable[[bytes], object] = lambda _data: None
        self.proxy = Proxy(database.server.host, database.server.port, self._hear)

    def _hear(self, data: bytes) -> None:
        self.said.append(data)
        self.react(data)


@pytest.fixture
def asked(database) -> Iterator[Asked]:
    found = Asked(database)
    yield found
    found.proxy.close()


@pytest.fixture
def pipeline(database, tmp_path, asked) -> PipelineRig:
    restrict(database)
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT n, 'old' FROM generate_series(1, 500) n")
    database.execute("CREATE TABLE signals (id text PRIMARY KEY, type text, data text)")
    for table in ("t", "signals"):
        database.execute(f"ALTER TABLE {table} OWNER TO {ROLE}")
    there: dict[str, Any] = {
        "type": "lesser",
        "database.user": ROLE,
        "database.port": asked.proxy.port,
        "database.sslmode": "disable",
        "publication.autocreate.mode": "filtered",
        "table.include.list": "public.t",
        "signal.data.collection": "public.signals",
    }
    return PipelineRig(database, tmp_path, there)


def source(database: Database) -> dict[int, str]:
    return dict(database.execute("SELECT id, v FROM t"))


def target(pipeline: PipelineRig) -> dict[int, str]:
    return {int(key[0]): row["v"] for key, row in pipeline.destination.table("t").items()}


def test_it_snapshots_streams_and_goes_on(pipeline, database, asked):
    plugin = LesserPlugin()
    with pipeline.running(plugin) as run:
        database.execute("UPDATE t SET v = 'new' WHERE id <= 10")
        database.execute("DELETE FROM t WHERE id = 11")
        run.until(lambda: target(pipeline) == source(database), "the changes")
    database.execute("INSERT INTO t VALUES (501, 'while down')")
    before = len(pipeline.destination.ids("t", "r"))
    with pipeline.running(plugin) as run:
        run.until(lambda: target(pipeline) == source(database), "what came meanwhile")
    assert before == 500
    assert len(pipeline.destination.ids("t", "r")) == before
    assert {connector.dialect for connector in plugin.made} == {LESSER}
    for words in UNKNOWN_COMMANDS:
        assert not [said for said in asked.said if words in said]
    assert [said for said in asked.said if b"NOEXPORT_SNAPSHOT" in said]


def test_rows_changed_between_slot_and_snapshot_come_twice_and_none_is_missing(
    pipeline, database, asked
):
    done: list[str] = []

    def meanwhile(data: bytes) -> None:
        """Change rows when the slot is there and the snapshot's transaction is about to begin."""
        if not done and b"ISOLATION LEVEL" in data and database.slots():
            done.append("once")
            database.execute("UPDATE t SET v = 'meanwhile' WHERE id % 7 = 0")

    asked.react = meanwhile
    with pipeline.running(LesserPlugin()) as run:
        run.until(lambda: len(pipeline.destination.ids("t", "u")) >= 71, "the changes")
    assert target(pipeline) == source(database)
    events = pipeline.destination.of("t")
    read = {int(event.row["id"]): event.row["v"] for event in events if event.op == "r"}
    changed = set(range(7, 501, 7))
    assert {number for number, value in read.items() if value == "meanwhile"} == changed
    assert set(pipeline.destination.ids("t", "u")) == changed
    assert len(read) == 500


def test_an_incremental_snapshot_goes_by_its_watermarks(pipeline, database):
    settings = {"snapshot.mode": "no_data", "incremental.snapshot.chunk.size": 64}
    with pipeline.running(LesserPlugin(), **settings) as run:
        pipeline.signal("execute-snapshot", "t", type="incremental")
        for n in range(20):
            database.execute("UPDATE t SET v = %s WHERE id %% 20 = %s", f"round {n}", n)
        run.until(lambda: target(pipeline) == source(database), "the same rows")


def test_its_own_errors_and_defaults_are_its_own():
    facts = {"slot": "s", "publication": "p"}
    ours = LesserProperties.meanings.of_stream("P0001", "the slot has expired", **facts)
    assert isinstance(ours, OffsetError)
    theirs = PostgresProperties.meanings.of_stream("P0001", "the slot has expired", **facts)
    assert not isinstance(theirs, OffsetError)
    given = LesserProperties.model_validate({"database.dbname": "d"})
    assert given.port == 5433
