"""Services that host PostgreSQL, imitated: a server of ours has what reports each (roles, settings, schemas,
a name), and doctor and plan name that service's own switches. Nothing is run on a service."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.own_server import own_server
from tests.harness.servers.postgres import Cluster, Database

from waltap.errors import WaltapError
from waltap.ports.source.connector import PreflightCheck

ROLE = "hosted"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Return a server as services make them: without logical decoding."""
    with own_server(wal_level="replica") as made:
        made.execute(f"CREATE ROLE {ROLE} LOGIN")
        yield made


@pytest.fixture(scope="module")
def shop(cluster) -> Database:
    made = cluster.create_database("shop")
    made.execute("CREATE TABLE t (id int PRIMARY KEY)")
    made.execute("CREATE PUBLICATION shop FOR TABLE t")
    made.execute(f"GRANT SELECT ON t TO {ROLE}")
    return made


def looked(
    shop: Database, folder: Path, **settings: Any
) -> tuple[dict[str, PreflightCheck], list[str]]:
    given = {name.replace("__", "."): value for name, value in settings.items()}
    given = {"database.user": ROLE, "publication.autocreate.mode": "disabled", **given}
    return PipelineRig(shop, folder, given).looked()


def group(name: str) -> tuple[str, str]:
    return f"CREATE ROLE {name} NOLOGIN", f"DROP ROLE {name}"


def setting(name: str, value: str) -> tuple[str, str]:
    return (
        f"ALTER DATABASE shop SET \"{name}\" = '{value}'",
        f'ALTER DATABASE shop RESET "{name}"',
    )


AURORA = (
    "CREATE FUNCTION aurora_version() RETURNS text LANGUAGE sql AS $$SELECT '16.4'$$",
    "DROP FUNCTION aurora_version()",
)
REPLICATION = f"ALTER ROLE {ROLE} WITH REPLICATION"
RDS = f"GRANT rds_replication TO {ROLE}"
IMITATED = {
    "RDS": (
        [group("rds_superuser"), group("rds_replication"), setting("rds.logical_replication", "off")],
        "Amazon RDS", "setting rds.logical_replication", "DB parameter group: rds.logical_replication = 1", RDS,
    ),
    "RDS before its reboot": (
        [group("rds_replication"), setting("rds.logical_replication", "on")],
        "Amazon RDS", "setting", "rds.logical_replication is on already: reboot the instance", RDS,
    ),
    "Aurora": (
        [group("rds_replication"), AURORA],
        "Amazon Aurora", "function aurora_version", "DB cluster parameter group", RDS,
    ),
    "Azure": (
        [group("azure_pg_admin"), setting("azure.extensions", "")],
        "Azure Database for PostgreSQL", "setting azure.extensions", "server parameter wal_level = logical", REPLICATION,
    ),
    "Cloud SQL": (
        [group("cloudsqlsuperuser")],
        "Google Cloud SQL", "role cloudsqlsuperuser", "flag cloudsql.logical_decoding = on", REPLICATION,
    ),
    "AlloyDB": (
        [group("alloydbsuperuser"), setting("alloydb.logical_decoding", "off")],
        "Google AlloyDB", "setting alloydb", "flag alloydb.logical_decoding = on", REPLICATION,
    ),
    "Supabase": ([group("supabase_admin")], "Supabase", "role", "logical there as it comes", REPLICATION),
    "Neon": (
        [group("neon_superuser"), setting("neon.timeline_id", "x")],
        "Neon", "setting neon.timeline_id", "Logical Replication: Enable", REPLICATION,
    ),
    "Heroku": (
        [("CREATE SCHEMA heroku_ext", "DROP SCHEMA heroku_ext"), group("rds_superuser")],
        "Heroku Postgres", "schema heroku_ext", "offers no logical replication", "move the database",
    ),
}  # fmt: skip
"""Each with what makes and removes it, then what is to be reported: who, by what, the switch, the grant."""


@pytest.mark.parametrize("case", IMITATED)
def test_the_switch_that_is_reported_is_the_services_own(case, shop, tmp_path):
    made, name, reported_by, switch, grant = IMITATED[case]
    for make, _ in made:
        shop.execute(make)
    try:
        found, others = looked(shop, tmp_path)
        for statement in (each for each in others if not each.startswith("-- ")):
            shop.execute(statement)  # what is no SQL says where it is done: a console
        granted, _ = looked(shop, tmp_path)
    finally:
        shop.execute(f"ALTER ROLE {ROLE} WITH NOREPLICATION")
        for _, remove in made:
            shop.execute(remove)
    assert granted["privileges"].verdict == ("error" if case == "Heroku" else "ok")
    remedies = [each.remedy for each in found.values() if each.verdict in {"error", "warning"}]
    assert not [each for each in remedies if "ALTER SYSTEM" in each], "nobody is a superuser there"
    assert found["hosted by"].found.startswith(f"{name}, recognized by {reported_by}")
    assert found["wal_level"].verdict == "error"
    assert switch in found["wal_level"].remedy
    assert "ALTER SYSTEM" not in found["wal_level"].remedy
    assert grant in found["privileges"].remedy
    assert any(grant in each for each in others)
    assert any(each.startswith("-- ") and switch.partition(": ")[0] in each for each in others)
    assert not any("restart" in each or "reboot" in each for each in others if each[:3] != "-- ")
    assert ("40 hours" in found["hosted by"].found) is (case == "Neon")


def test_a_server_of_nobody_is_reported_nothing_of_services(shop, tmp_path):
    found, others = looked(shop, tmp_path)
    assert "hosted by" not in found
    assert "ALTER SYSTEM SET wal_level" in found["wal_level"].remedy
    assert "ALTER SYSTEM SET wal_level = 'logical'" in others
    assert "-- then restart the server" in others


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("shop.c9akciq32.eu-central-1.rds.amazonaws.com", "Amazon RDS"),
        ("shop.postgres.database.azure.com", "Azure Database for PostgreSQL"),
        ("shop.example.com", None),
    ],
)
def test_a_name_is_a_hint(address, name, shop, tmp_path):
    found, _ = looked(shop, tmp_path, database__hostname=address, driver__hostaddr=shop.server.host)
    reported = f"{name}, recognized by its name {address}"
    assert [
        each.found.partition(":")[0] for each in found.values() if each.name == "hosted by"
    ] == ([] if name is None else [reported])


def test_a_member_of_rds_replication_may_replicate_and_publishes_what_it_owns(shop, tmp_path):
    shop.execute("CREATE ROLE rds_superuser NOLOGIN; CREATE ROLE rds_replication NOLOGIN")
    try:
        shop.execute(RDS)
        found, others = looked(shop, tmp_path)
        assert found["privileges"].verdict == "ok"
        assert RDS not in others
        own = {"publication__autocreate__mode": "all_tables", "publication__name": "own"}
        found, _ = looked(shop, tmp_path, **own)
        assert found["publication"].verdict == "error"
        shop.execute(f"GRANT rds_superuser TO {ROLE}")
        found, _ = looked(shop, tmp_path, **own)
        assert found["publication"].verdict == "ok"
    finally:
        shop.execute("DROP ROLE rds_superuser, rds_replication")


def test_commits_that_do_not_wait_for_the_disk_are_reported(shop, tmp_path):
    assert "latency" not in looked(shop, tmp_path)[0]
    shop.execute(
        "CREATE ROLE app NOLOGIN; ALTER ROLE app IN DATABASE shop SET synchronous_commit = off"
    )
    try:
        latency = looked(shop, tmp_path)[0]["latency"]
        assert latency.verdict == "ok"
        assert "off for role app in database shop: " in latency.found
        assert "600 ms" in latency.found
        shop.execute("ALTER SYSTEM SET wal_writer_delay = '5s'")
        shop.server.reload()
        latency = looked(shop, tmp_path)[0]["latency"]
        assert latency.verdict == "warning"
        assert "15000 ms" in latency.found
        assert "wal_writer_delay" in latency.remedy
    finally:
        shop.execute("DROP OWNED BY app; DROP ROLE app")
        shop.execute("ALTER SYSTEM RESET wal_writer_delay")
        shop.server.reload()


def test_a_standby_that_cannot_decode_is_refused_with_the_primarys_address(cluster, shop, tmp_path):
    if cluster.version >= 160000:
        pytest.skip("the server decodes on standbys")
    cluster.execute("SELECT pg_create_physical_replication_slot('second', true)")
    standby = cluster.standby("second")
    try:
        there = Database(standby, shop.name)
        pipeline = PipelineRig(there, tmp_path, {"publication.autocreate.mode": "disabled"})
        with pytest.raises(WaltapError) as caught:
            pipeline.run()
        assert caught.value.code in {"WT-2124", "WT-2006"}
        found, _ = looked(there, tmp_path, database__user="postgres")
        assert found["standby"].error is not None
        assert found["standby"].error.code == "WT-2124"
        assert f"{cluster.host}:{cluster.port}" in found["standby"].remedy
    finally:
        standby.remove()
