"""``publication.keyless.tables=inserts``: tables lose their key, or come without one, after the slot
was made. The server looks for each publication in the catalogue as it was at every change."""

import re

import pytest
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

from waltap_postgres.errors import InsertsPublicationGone

INSERTS = {"publication.keyless.tables": "inserts"}


pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY); CREATE TABLE u (id int PRIMARY KEY)",
    settings={"waltap.new.tables": "warn"},
)


def published_inserts(database: Database, pipeline: PipelineRig) -> list[str]:
    rows = database.execute(
        f"SELECT tablename::text FROM pg_publication_tables WHERE pubname = '{pipeline.slot}_inserts'"
    )
    return sorted(str(row[0]) for row in rows)


def until_published(database: Database, pipeline: PipelineRig, tables: list[str], sql: str) -> int:
    """Deliver ``sql``, of a row with the next number, until the slot has let go of what is older; return the last one."""
    for n in range(10, 40):
        pipeline.deliver("CHECKPOINT", sql.format(n))
        if published_inserts(database, pipeline) == tables:
            return n
    pytest.fail("the publication of inserts was never used")


def test_a_table_without_key_comes_while_the_engine_is_down(pipeline):
    pipeline.settings |= INSERTS
    pipeline.catch_up()
    pipeline.deliver(
        "INSERT INTO t VALUES (1); CREATE TABLE log (id int)",
        "ALTER TABLE u DROP CONSTRAINT u_pkey",
        "INSERT INTO u VALUES (5)",
    )
    reported = pipeline.doctor()["replica identity"]
    assert (reported.verdict, "only inserts" in reported.found) == ("warning", True)
    pipeline.deliver(
        "INSERT INTO log VALUES (2); UPDATE log SET id = 3",
        "INSERT INTO u VALUES (6); DELETE FROM u; INSERT INTO t VALUES (4)",
    )
    assert pipeline.destination.ids("t") == [1, 4]
    assert pipeline.destination.ids("u") == [5, 6]
    assert pipeline.destination.ids("log") == [2]


@pytest.mark.pipeline(
    sql="CREATE TABLE log (id int) PARTITION BY LIST (id); CREATE TABLE log_1 PARTITION OF log DEFAULT",
    settings={"publish.via.partition.root": True},
)
def test_rows_of_a_partitioned_table_without_key_have_its_name(pipeline):
    pipeline.settings |= INSERTS
    pipeline.catch_up()
    pipeline.deliver("INSERT INTO log VALUES (1)")
    pipeline.deliver("INSERT INTO log VALUES (2)")
    assert pipeline.destination.ids("log") == [1, 2]


def test_a_table_that_gets_its_key_back_gives_what_it_had_before(database, pipeline):
    database.execute("ALTER TABLE u DROP CONSTRAINT u_pkey")
    pipeline.settings |= INSERTS
    pipeline.catch_up()
    pipeline.deliver("INSERT INTO u VALUES (1); ALTER TABLE u ADD PRIMARY KEY (id)")
    pipeline.deliver("INSERT INTO u VALUES (2)")
    assert pipeline.destination.ids("u") == [1, 2]


def test_the_policy_is_chosen_for_a_slot_that_is_there(database, pipeline, caplog):
    """The publication is younger than what the slot has to decode: it gets its tables later."""
    pipeline.catch_up()
    database.execute("INSERT INTO t VALUES (1); CREATE TABLE log (id int)")
    database.execute("ALTER TABLE u DROP CONSTRAINT u_pkey; INSERT INTO u VALUES (5)")
    pipeline.settings |= INSERTS
    pipeline.catch_up()
    assert "join the publication of inserts at a later start" in caplog.text
    assert published_inserts(database, pipeline) == []
    n = until_published(database, pipeline, ["log", "u"], "INSERT INTO u VALUES ({})")
    assert pipeline.destination.ids("u") == [5, *range(10, n + 1)]
    pipeline.deliver("INSERT INTO log VALUES (2); UPDATE u SET id = 0; INSERT INTO t VALUES (4)")
    assert pipeline.destination.ids("t") == [1, 4]
    assert pipeline.destination.ids("log") == [2]


def test_a_publication_of_inserts_that_was_made_after_the_slot_lets_it_go_on_as_its_remedy_says(
    database, pipeline, caplog
):
    """As a pipeline of an older version left it; what is inserted into u meanwhile is reported."""
    pipeline.catch_up()
    database.execute("ALTER TABLE u DROP CONSTRAINT u_pkey")
    database.execute("INSERT INTO t VALUES (1); INSERT INTO u VALUES (1)")
    name = pipeline.slot
    database.execute(
        f"CREATE PUBLICATION {name}_inserts FOR TABLE u WITH (publish = 'insert, truncate');"
        f"ALTER PUBLICATION {name} DROP TABLE u; INSERT INTO u VALUES (2); INSERT INTO t VALUES (2)"
    )
    pipeline.settings |= INSERTS
    for _ in range(2):
        with pytest.raises(InsertsPublicationGone) as refused:
            pipeline.catch_up()
    statements = re.search(
        r"DROP PUBLICATION [^;]+; CREATE PUBLICATION [^;]+", refused.value.advice()
    )
    database.run(*statements[0].split("; "))
    pipeline.catch_up()
    assert pipeline.destination.ids("t") == [1, 2]
    assert pipeline.destination.ids("u") == [1]
    assert "until then, tables in no publication are not captured" in caplog.text
    n = until_published(database, pipeline, ["u"], "INSERT INTO t VALUES ({})")
    assert (
        "table public.u was captured before, and is captured again after an interruption; rows and "
        "changes in between are missing"
    ) in caplog.text
    pipeline.deliver("INSERT INTO u VALUES (5)")
    assert pipeline.destination.ids("u") == [1, 5]
    assert pipeline.destination.ids("t") == [1, 2, *range(10, n + 1)]
