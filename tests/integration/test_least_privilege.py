"""The grants of docs/howto/postgresql.md, and no others, are enough. Without one of them a start, and `doctor`, which has
the same checks, names it with the SQL that gives it, and that SQL suffices, as remedies for the server itself do."""

import logging
import os
import re
import string
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.pipeline import PipelineRig, until
from tests.harness.servers.own_server import own_server
from tests.harness.servers.postgres import Cluster, Database, queries

from waltap.errors import WaltapError
from waltap.pipeline import Limits
from waltap_postgres.connection_errors import PasswordOutdated
from waltap_postgres.errors import (
    AuthenticationRefused,
    FailoverUnavailable,
    NothingCaptured,
    ServerLimit,
    SlotExists,
    SnapshotTooOld,
)

PAGE = (Path(__file__).parents[2] / "docs/howto/postgresql.md").read_text()
HEARTBEAT = (
    "INSERT INTO sales.heartbeat VALUES (1, now()) ON CONFLICT (id) DO UPDATE SET at = now()"
)
TABLES = """
CREATE SCHEMA sales AUTHORIZATION {owner};
CREATE TABLE sales.orders (id int PRIMARY KEY, v text);
CREATE TABLE sales.customers (id int PRIMARY KEY);
INSERT INTO sales.orders VALUES (1, 'a'), (2, 'b');
ALTER TABLE sales.orders OWNER TO {owner};
ALTER TABLE sales.customers OWNER TO {owner};
"""


def documented(*headings: str) -> list[str]:
    """Return the statements that the page has under ``headings``."""
    found = []
    for heading in headings:
        text = PAGE.partition(f"\n### {heading}\n")[2].partition("\n###")[0]
        (block,) = re.findall(r"```sql\n(.*?)```", text, re.DOTALL)
        found += [line.rstrip(";") for line in block.splitlines() if line.strip()]
    return found


class Shop:
    """A database whose role has what the page says, by headings, but for what a test leaves out."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database, self.folder = database, folder
        self.role, self.owner = f"least_{database.name}"[:60], f"owner_{database.name}"[:60]
        database.execute(f"CREATE ROLE {self.owner} NOLOGIN")
        database.execute(f'REVOKE ALL ON DATABASE "{database.name}" FROM PUBLIC')
        database.psql(TABLES.format(owner=self.owner))

    def own(self, statement: str) -> str:
        for word, name in (("waltap", self.role), ("shop_owner", self.owner)):
            statement = re.sub(rf"\b{word}\b", name, statement)
        statement = re.sub(r'(DATABASE "?)shop\b', rf"\g<1>{self.database.name}", statement)
        return re.sub(r'(PUBLICATION "?)shop\b', rf"\g<1>{self.publication}", statement)

    @property
    def publication(self) -> str:
        return self.database.name[:60]

    def grant(self, *headings: str) -> None:
        self.database.run(*map(self.own, documented(*headings)))

    def pipeline(self, **settings: object) -> PipelineRig:
        named = {name.replace("__", "."): value for name, value in settings.items()}
        return PipelineRig(
            self.database,
            self.folder,
            {"database.user": self.role, "schema.include.list": "sales",
             "publication.autocreate.mode": "disabled", **named},
        )  # fmt: skip

    def forget(self) -> None:
        self.database.execute(f'DROP PUBLICATION IF EXISTS "{self.publication}"')
        self.database.execute("DROP SCHEMA sales CASCADE")
        for name in (self.role, self.owner):
            if self.database.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", name):
                self.database.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture(params=["database", "newest_database"])
def shop(request, tmp_path) -> Iterator[Shop]:
    made = Shop(request.getfixturevalue(request.param), tmp_path)
    yield made
    made.forget()


NEWEST = pytest.mark.parametrize("shop", ["newest_database"], indirect=True)
SIGNALS = {"signal__data__collection": "sales.signals", "incremental__snapshot__chunk__size": 1}


def test_the_documented_grants_suffice(shop):
    """To stream, to take a snapshot, to take one again by signals, and for heartbeats."""
    shop.grant("Stream", "Snapshot", "Signals", "Heartbeats")
    shop.database.execute("CREATE TABLE public.other (id int PRIMARY KEY)")
    pipeline = shop.pipeline(
        **SIGNALS, heartbeat__interval__ms=100, heartbeat__action__query=HEARTBEAT
    )
    with pipeline.running() as run:
        shop.database.execute("INSERT INTO sales.orders VALUES (3, 'c')")
        run.until(lambda: 3 in pipeline.destination.ids("sales.orders"), "the stream")
        asked = '{"data-collections": ["sales.orders"], "type": "incremental"}'
        shop.database.execute(
            "INSERT INTO sales.signals VALUES ('again', 'execute-snapshot', %s)", asked
        )
        run.until(
            lambda: [e.op for e in pipeline.destination.of("sales.orders")].count("r") == 5,
            "chunks",
        )
        run.until(lambda: shop.database.execute("SELECT 1 FROM sales.heartbeat"), "a heartbeat")
        assert not [each for each in run.notices.failures if each]


def test_publications_by_waltap_and_a_read_only_snapshot(shop):
    shop.grant("Stream", "Snapshot", "Publications by waltap")
    shop.database.execute(f'DROP PUBLICATION "{shop.publication}"')
    pipeline = shop.pipeline(
        publication__autocreate__mode="filtered", read__only=True, signal__enabled__channels="file",
        signal__file=str(shop.folder / "signals"),
    )  # fmt: skip
    with pipeline.running() as run:
        shop.database.execute("INSERT INTO sales.orders VALUES (3, 'c')")
        run.until(lambda: 3 in pipeline.destination.ids("sales.orders"), "the stream")
        asked = {"data-collections": ["sales.orders"], "type": "incremental"}
        assert run.engine.signal("execute-snapshot", asked).result(120).accepted
        run.until(
            lambda: [e.op for e in pipeline.destination.of("sales.orders")].count("r") == 5,
            "chunks",
        )


def test_a_snapshot_needs_no_right_on_columns_that_are_not_published(shop):
    shop.grant("Stream")
    more = [
        "ALTER PUBLICATION shop SET TABLE sales.orders (id)",
        "GRANT USAGE ON SCHEMA sales TO waltap",
        "GRANT SELECT (id) ON sales.orders TO waltap",
    ]
    shop.database.run(*map(shop.own, more))
    pipeline = shop.pipeline(table__include__list="sales.orders")
    assert doctors(pipeline) == ([], [])
    with pipeline.running() as run:
        shop.database.execute("INSERT INTO sales.orders VALUES (3, 'c')")
        run.until(lambda: 3 in pipeline.destination.ids("sales.orders"), "the stream")
    assert [event.row for event in pipeline.destination.events] == [{"id": n} for n in "123"]


SIGNAL_GRANT = 'GRANT SELECT, INSERT, DELETE ON "sales"."signals" TO "waltap"'
LACKING = {
    "LOGIN": ("ALTER ROLE waltap NOLOGIN", "WT-2003", "ALTER ROLE waltap WITH LOGIN"),
    "CONNECT": (
        "REVOKE CONNECT ON DATABASE shop FROM waltap", "WT-2005", "GRANT CONNECT ON DATABASE shop TO waltap",
    ),
    "USAGE of the schema": (
        "REVOKE USAGE ON SCHEMA sales FROM waltap", "WT-2011", 'GRANT USAGE ON SCHEMA "sales" TO "waltap"',
    ),
    "INSERT of signals": ("REVOKE INSERT ON sales.signals FROM waltap", "WT-2115", SIGNAL_GRANT),
}  # fmt: skip
"""Each with what takes it away, the code of the error, and what gives it back; others: test_refusals.py."""


@pytest.fixture(scope="module")
def lacking(newest_server, tmp_path_factory) -> Iterator[Shop]:
    """Return a shop from which something is taken away, and given back, on PostgreSQL 18; on 15: test_refusals.py."""
    database = newest_server.create_database(f"waltap_lacking_{os.getpid()}")
    made = Shop(database, tmp_path_factory.mktemp("lacking"))
    made.grant("Stream", "Snapshot", "Signals")
    yield made
    made.forget()
    assert database.drop() == []


def failing(pipeline: PipelineRig) -> WaltapError:
    with pytest.raises(WaltapError) as caught:
        pipeline.run(limits=Limits(until_idle=0.2))
    return caught.value


def doctors(pipeline: PipelineRig) -> tuple[list[WaltapError], list[str]]:
    """Return what `waltap doctor` finds wrong, and what `waltap plan` says that others must do."""
    try:
        found, others = pipeline.looked()
    except WaltapError as error:
        return [error], [error.advice()]
    return [each.error for each in found.values() if each.error], others


@pytest.mark.parametrize("what", LACKING)
def test_what_is_missing_is_named_with_the_sql_that_gives_it(lacking, what):
    away, code, back = (lacking.own(each) for each in LACKING[what])
    pipeline = lacking.pipeline(**SIGNALS)
    lacking.database.execute(away)
    error = failing(pipeline)
    assert error.code == code, str(error)
    assert back in error.advice()
    (found, *_), others = doctors(pipeline)
    assert found.code == code
    assert any(back in each for each in others)
    lacking.database.run(*(others if others != [error.advice()] else [back]))
    assert doctors(pipeline) == ([], [])


OWNING = {
    "CREATE in the database": "REVOKE CREATE ON DATABASE shop FROM waltap",
    "the owner's role": "REVOKE shop_owner FROM waltap",
}


@NEWEST
@pytest.mark.parametrize("what", OWNING)
def test_what_publishing_lacks_is_named(shop, what):
    """A superuser may run what waltap would have, or give the role what it needs."""
    # not `lacking`: a member of the owner's role lacks no right on its tables
    shop.grant("Stream", "Snapshot", "Signals", "Publications by waltap")
    shop.database.execute(f'DROP PUBLICATION "{shop.publication}"')
    pipeline = shop.pipeline(publication__autocreate__mode="filtered", **SIGNALS)
    shop.database.execute("ALTER TABLE sales.signals OWNER TO " + shop.owner)
    assert doctors(pipeline)[0] == []
    shop.database.execute(shop.own(OWNING[what]))
    error = failing(pipeline)
    assert error.code == "WT-2109", str(error)
    assert (
        shop.own('GRANT CREATE ON DATABASE "shop" TO "waltap"').replace('""', '"') in error.advice()
    )
    assert "membership in the roles that own the tables" in error.advice()
    _, others = doctors(pipeline)
    shop.database.run(*others)
    assert doctors(pipeline)[0] == []


def test_a_heartbeat_that_may_not_write_says_what_lets_it(shop, caplog):
    shop.grant("Stream", "Heartbeats")
    shop.database.execute(shop.own("REVOKE INSERT ON sales.heartbeat FROM waltap"))
    shop.database.execute(shop.own("GRANT USAGE ON SCHEMA sales TO waltap"))
    pipeline = shop.pipeline(
        snapshot__mode="no_data", heartbeat__interval__ms=50, heartbeat__action__query=HEARTBEAT
    )
    with caplog.at_level(logging.WARNING), pipeline.running() as run:
        run.until(lambda: "heartbeat.action.query failed" in caplog.text, "a heartbeat")
    assert f"GRANT SELECT, INSERT, UPDATE, DELETE ON heartbeat TO {shop.role}" in caplog.text


def failover_of(pipeline: PipelineRig) -> list[tuple[bool]]:
    query = "SELECT failover FROM pg_replication_slots WHERE slot_name = %s"
    return pipeline.database.execute(query, pipeline.slot)


@NEWEST
@pytest.mark.parametrize("later", [False, True], ids=["made so", "made so later"])
def test_a_slot_that_is_to_outlive_a_failover_needs_replication_alone(shop, later):
    """Of PostgreSQL 18; the slot of a profile that had no slot.failover is altered at the next start."""
    shop.grant("Stream")
    pipeline = shop.pipeline(snapshot__mode="no_data", slot__failover=not later)
    with pipeline.running() as run:
        shop.database.execute("INSERT INTO sales.orders VALUES (3, 'c')")
        run.until(lambda: pipeline.destination.ids("sales.orders") == [3], "the stream")
    assert failover_of(pipeline) == [(not later,)]
    pipeline.settings["slot.failover"] = True
    with pytest.raises(FailoverUnavailable, match=r"slot\.temporary"):
        pipeline.run(**{"slot.temporary": True})
    assert doctors(pipeline)[0] == []
    with pipeline.running() as run:
        shop.database.execute("INSERT INTO sales.orders VALUES (4, 'd')")
        run.until(lambda: pipeline.destination.ids("sales.orders") == [3, 4], "the stream")
    assert failover_of(pipeline) == [(True,)]
    shop.database.execute(shop.own("ALTER ROLE waltap NOREPLICATION"))
    error = failing(pipeline)
    assert error.code == "WT-2005", str(error)
    assert shop.own('ALTER ROLE "waltap" WITH REPLICATION') in error.advice()


# --- remedies for the server itself (settings, slots, roles), carried out as they are printed ----------


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with own_server(Cluster.create_newest) as made:
        yield made


@pytest.fixture
def newest(cluster, tmp_path) -> Iterator[PipelineRig]:
    database = cluster.create_database("shop")
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    yield PipelineRig(database, tmp_path)
    assert database.drop() == []


def carry_out(database: Database, remedy: str) -> list[str]:
    """Execute the statements of ``remedy`` one by one, as psql does; return them."""
    statements = re.findall(r"(?:ALTER|CREATE|GRANT|SELECT) [^;`]*(?=;|$)", remedy)
    for statement in statements:
        database.execute(statement)
    return statements


@pytest.mark.parametrize(
    ("setting", "value", "check", "given"),
    [
        ("idle_replication_slot_timeout", "10d", "slot limits", {"waltap.wal.budget": "10GB"}),
        ("max_slot_wal_keep_size", "-1", "slot limits", {}),
        ("wal_level", "replica", "wal_level", {}),
        ("synchronized_standby_slots", "", "slot.failover", {"slot.failover": True}),
    ],
)
def test_the_setting_that_doctor_names_ends_its_warning(newest, setting, value, check, given):
    database = newest.database
    database.execute("SELECT pg_create_physical_replication_slot('standby')")
    try:
        database.execute(f"ALTER SYSTEM SET {setting} = '{value}'")
        database.execute("SELECT pg_reload_conf()")
        until(lambda: check in newest.doctor(**given), "the warning")
        remedy = newest.doctor(**given)[check].remedy
        assert setting in remedy
        statements = carry_out(database, remedy.replace("'SLOT'", "'standby'"))
        assert statements
        if setting == "wal_level":  # it takes a restart, as long as that it is only written
            database.execute("SELECT pg_reload_conf()")
        until(lambda: check not in newest.doctor(**given), "the warning's end")
    finally:
        database.execute(f"ALTER SYSTEM RESET {setting}")
        database.execute("SELECT pg_reload_conf()")
        database.execute("SELECT pg_drop_replication_slot('standby')")


def test_the_role_that_is_to_capture_in_place_of_a_superuser_does(newest):
    database = newest.database
    reported = newest.doctor()["privileges"]
    assert "superuser" in reported.found
    (create,) = re.findall(r"CREATE ROLE [^;]*", reported.remedy)
    database.execute(create)
    role = create.split()[2]
    try:
        for statement in documented("Stream", "Snapshot")[1:]:  # what else the page grants
            own = re.sub(r"\bleast\b", role, statement).replace(
                "PUBLICATION waltap", "PUBLICATION shop"
            )
            own = own.replace("sales.orders, sales.customers", "t").replace(
                "SCHEMA sales", "SCHEMA public"
            )
            database.execute(own)
        newest.settings |= {
            "database.user": role,
            "publication.name": "shop",
            "publication.autocreate.mode": "disabled",
        }
        assert "privileges" not in newest.doctor()
        newest.catch_up()
        newest.deliver("INSERT INTO t VALUES (2)")
        assert newest.destination.ids("t") == [1, 2]
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


KEPT_OUT = {
    "no such role": "",
    "may not log in": "CREATE ROLE guest NOLOGIN REPLICATION",
    "bad password": "CREATE ROLE guest LOGIN REPLICATION PASSWORD 'another'",
    "no line in pg_hba.conf": "CREATE ROLE guest LOGIN REPLICATION PASSWORD '…'",
}


@pytest.mark.parametrize("case", KEPT_OUT)
def test_a_role_that_is_kept_out_is_let_in(cluster, newest, case):
    """The password of what is printed is typed as it is."""
    database, hba = newest.database, cluster.folder / "data" / "pg_hba.conf"
    before = hba.read_text()
    line = "" if "pg_hba" in case else "host all guest all scram-sha-256\n"
    if case in {"may not log in", "no such role"}:
        line = "host all guest all trust\n"  # else the password is asked for first
    hba.write_text(f"{line}host all guest all reject\n{before}")
    cluster.reload()
    try:
        if KEPT_OUT[case]:
            database.execute(KEPT_OUT[case])
        newest.settings |= {"database.user": "guest", "database.password": "…"}
        with pytest.raises(AuthenticationRefused) as refused:
            newest.run()
        advice = refused.value.advice()
        if "pg_hba" in case:
            (added,) = re.findall(r"host \S+ guest ADDRESS \S+(?=,)", advice)
            hba.write_text(f"{added.replace('ADDRESS', 'all')}\n{hba.read_text()}")
            (reload,) = queries(advice)
            database.execute(reload)
        else:
            statement, *_ = re.findall(r"(?:CREATE ROLE guest|ALTER ROLE) .*?(?=;|,|\.$)", advice)
            database.execute(statement)
        database.execute("ALTER TABLE t OWNER TO guest; GRANT CREATE ON DATABASE shop TO guest")
        until(lambda: _caught_up(newest), "the role is let in")
        assert newest.destination.ids("t") == [1]
    finally:
        hba.write_text(before)
        cluster.reload()
        database.execute(
            "ALTER TABLE t OWNER TO postgres; DROP OWNED BY guest CASCADE; DROP ROLE guest"
        )


def _caught_up(newest: PipelineRig) -> bool:
    """Run; False where the server has not read its new settings yet."""
    try:
        newest.catch_up()
    except AuthenticationRefused:
        return False
    return True


def test_a_slot_that_nobody_needs_is_dropped(newest):
    database = newest.database
    newest.deliver("SELECT pg_create_logical_replication_slot('left_behind', 'pgoutput')")
    reported = newest.doctor()["orphan slots"]
    assert carry_out(database, reported.remedy) == [
        "SELECT pg_drop_replication_slot('left_behind')"
    ]
    assert "orphan slots" not in newest.doctor()
    database.execute("SELECT pg_create_logical_replication_slot('there', 'pgoutput')")
    assert carry_out(database, SlotExists("a slot", slot="there").advice())
    assert "there" not in str(database.slots())


def test_a_threshold_for_old_snapshots_is_taken_back(private_server):
    """PostgreSQL up to 16 has it; no test can wait for the minutes that it takes to be in the way."""
    statements = re.findall(r"ALTER SYSTEM [^;]*", SnapshotTooOld.remedy)
    assert len(statements) == 1
    private_server.execute("ALTER SYSTEM SET old_snapshot_threshold = '1min'")
    private_server.restart()
    private_server.execute(statements[0])
    private_server.restart()
    assert private_server.execute("SHOW old_snapshot_threshold") == [("-1",)]


def test_every_query_that_a_remedy_prints_is_one(newest, database):
    """On PostgreSQL 18 and on 15. Those with names of a situation are executed in it, elsewhere."""
    found = {
        query
        for error in WaltapError.family()
        if isinstance(error.remedy, str)
        for query in queries(error.remedy)
        if re.search(r" FROM |\(", query)  # else the word is of a sentence
        and not any(name for _, name, *_ in string.Formatter().parse(query))
    }
    for error in (PasswordOutdated, NothingCaptured, ServerLimit):
        assert found >= set(queries(error.remedy)), error
    for query in found - {"SELECT pg_promote()"}:  # which test_newest_server.py does
        newest.database.execute(query)
        database.execute(query)
