"""waltap and Debezium on one server, at the same time, on tables that hypothesis makes.

Both engines run once for all cases: a JVM takes seconds to start. Each case is a table in a schema of
its own; a row in a table of sentinels shows when both have delivered it. ``WALTAP_GENERATED_CASES`` sets
how many cases there are; CI runs 20, always the same ones.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from tests.differential.accepted import unexplained
from tests.differential.comparison import differences, report
from tests.differential.engines import Debezium, Engine, Waltap
from tests.differential.generated import PREAMBLE, Case, cases
from tests.differential.normalise import Record, canonical, payload
from tests.harness.servers.postgres import Database, Server

CASES = int(os.environ.get("WALTAP_GENERATED_CASES", "20"))
DELIVERY_SECONDS = 240.0
IDLE_SECONDS = 2.0
SETTINGS = settings(
    max_examples=CASES,
    deadline=None,
    print_blob=True,
    derandomize=CASES <= 20,
    suppress_health_check=[HealthCheck.too_slow],
)

MODES = {
    "decimal.handling.mode": "string",
    "binary.handling.mode": "hex",
    "interval.handling.mode": "string",
    "hstore.handling.mode": "map",
    "time.precision.mode": "isostring",
    "include.unknown.datatypes": "true",
    "column.propagate.source.type": ".*",
}
"""Each mode's other value."""

_numbers = itertools.count(1)


def properties(database: Database, engine: str, **more: str) -> dict[str, str]:
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": "t",
        "plugin.name": "pgoutput",
        "slot.name": f"{database.name}_{engine}",
        "publication.name": f"publication_{engine}",
        "snapshot.mode": "no_data",
        "key.converter.schemas.enable": "true",
        "value.converter.schemas.enable": "true",
        **database.properties(),
        **more,
    }


@dataclass
class Pair:
    """Both engines on one database."""

    database: Database
    waltap: Engine
    debezium: Engine
    modes: dict[str, str]

    def events(self, case: Case) -> tuple[list[Record], list[Record]]:
        """Run ``case`` in a schema of its own; return Debezium's and waltap's events of its table."""
        schema = f"g{next(_numbers)}"
        found: tuple[list[Record], list[Record]] = ([], [])
        with self.database.connect() as connection:
            connection.execute(f"CREATE SCHEMA {schema}; SET search_path = {schema}, public")
            for statement in case.create:
                connection.execute(statement)
            for group in case.transactions:
                if group[0].startswith("ALTER"):
                    self._deliver(connection, found)
                run_transaction(connection, group)
            self._deliver(connection, found)
        theirs, ours = (
            canonical([r for r in records if r["topic"] == f"t.{schema}.items"])
            for records in found
        )
        return theirs, ours

    def _deliver(
        self, connection: psycopg.Connection, found: tuple[list[Record], list[Record]]
    ) -> None:
        """Wait until both engines have delivered what is committed; add it to ``found``."""
        number = next(_numbers)
        connection.execute("INSERT INTO public.sentinel VALUES (%s)", [number])
        for engine, records in zip((self.debezium, self.waltap), found, strict=True):
            records += self._delivered(engine, number)

    @staticmethod
    def _delivered(engine: Engine, number: int) -> list[Record]:
        """Return what ``engine`` dumped since the last call, up to the sentinel."""
        found: list[Record] = []

        def seen() -> bool:
            found.extend(engine.news())
            return any(
                record["topic"] == "t.public.sentinel"
                and payload(record["value"])["after"]["n"] == number
                for record in found
            )

        engine.wait(seen, DELIVERY_SECONDS, f"the sentinel of case {number} did not come")
        return found


def run_transaction(connection: psycopg.Connection, statements: tuple[str, ...]) -> None:
    """Run ``statements`` in one transaction; one that fails is rolled back alone."""
    with connection.transaction():
        for statement in statements:
            if "SAVEPOINT" in statement:
                connection.execute(statement)
                continue
            refused = (psycopg.errors.DataError, psycopg.errors.IntegrityError)
            with contextlib.suppress(*refused), connection.transaction():
                connection.execute(statement)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param({}, id="defaults"),
        pytest.param(MODES, id="modes", marks=pytest.mark.exhaustive),
    ],
)
def pair(
    peer: None,
    server: Server,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Pair]:
    modes: dict[str, str] = request.param
    database = server.create_database(f"waltap_generated_{os.getpid()}")
    folder = tmp_path_factory.mktemp("pair")
    started: list[Engine] = []
    try:
        database.execute(PREAMBLE)
        database.execute("CREATE TABLE public.sentinel (n integer PRIMARY KEY)")
        soon = properties(database, "debezium", **{"poll.interval.ms": "10"}, **modes)
        debezium = Debezium(folder / "debezium", soon, IDLE_SECONDS)
        started.append(debezium)
        debezium.wait_ready()  # one after the other: both make a publication for all tables
        waltap = Waltap(folder / "waltap", properties(database, "waltap", **modes))
        started.append(waltap)
        waltap.wait_ready()
        yield Pair(database, waltap, debezium, modes)
    finally:
        for engine in started:
            engine.stop()
        database.drop()


def test_changes_and_snapshots_of_generated_tables_are_equal(pair: Pair, tmp_path: Path) -> None:
    """First the cases, one by one; then one snapshot of all the tables that they left."""

    def comparable(case: Case) -> bool:
        # Debezium ends at NULL in an array of a domain if it includes unknown types
        return not pair.modes or "public.positive[]" not in str(case)

    @SETTINGS
    @given(case=cases().filter(comparable))
    def changes(case: Case) -> None:
        theirs, ours = pair.events(case)
        found, _ = unexplained("generated", differences(theirs, ours))
        assert not found, f"\n{report(found)}"

    changes()
    theirs, ours = snapshots(pair.database, tmp_path, pair.modes)
    found, _ = unexplained("generated", differences(theirs, ours))
    assert not found, f"\n{report(found)}"


def snapshots(
    database: Database, folder: Path, modes: dict[str, str]
) -> tuple[list[Record], list[Record]]:
    """Return Debezium's and waltap's snapshot of all tables of ``database``, by table."""
    once = {**modes, "snapshot.mode": "initial_only", "slot.name": f"{database.name}_snapshot"}
    waltap = Waltap(folder / "w", properties(database, "waltap", **once))
    try:
        waltap.finish(database)
    finally:
        waltap.stop()
    database.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
        f" WHERE slot_name = '{once['slot.name']}'"
    )
    debezium = Debezium(folder / "d", properties(database, "debezium", **once), IDLE_SECONDS)
    came: list[Record] = []

    def whole() -> bool:
        came.extend(debezium.news())
        return len(came) >= len(waltap.records())

    try:
        debezium.wait(whole, DELIVERY_SECONDS, "not the whole snapshot")  # it may pause midway
        debezium.finish(database)
    finally:
        debezium.stop()
    dumped = debezium.records(), waltap.records()
    theirs, ours = (canonical(sorted(each, key=lambda r: str(r["topic"]))) for each in dumped)
    return theirs, ours
