"""`waltap plan`: what a start would make, reported before; and then exactly that is made. ``waltap tables`` and
``waltap snapshot``: what is streamed is changed while the pipeline runs, or rests."""

import pytest
from tests.harness.meanwhile import in_background

# --- plan --------------------------------------------------------------------------------------------


pytestmark = pytest.mark.shop(
    sql="CREATE TABLE t (id int PRIMARY KEY, price numeric(10,2), at timestamptz);"
    "INSERT INTO t SELECT g, g, now() FROM generate_series(1, 5000) g;"
    "CREATE TABLE whole (id int PRIMARY KEY); ALTER TABLE whole REPLICA IDENTITY FULL;"
    "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id);"
    "CREATE TABLE part PARTITION OF parts FOR VALUES FROM (0) TO (10);"
    "INSERT INTO parts VALUES (1); ANALYZE",
    source={"publication.autocreate.mode": "filtered"},
    sink={"type": "null"},
)


def test_a_plan_shows_everything_and_makes_nothing_and_then_that_is_made(shop):
    shop.source["replica.identity.autoset.values"] = "public.t:FULL"
    shop.source["message.key.columns"] = "public.t:price"
    found = shop.json("plan FILE --json")
    alter, publication = found["statements"]
    assert alter == 'ALTER TABLE "public"."t" REPLICA IDENTITY FULL'
    assert publication.startswith(f'CREATE PUBLICATION "{shop.slot}')
    assert found["slot"].startswith("CREATE_REPLICATION_SLOT")
    assert found["by_others"] == []
    tables = {each["table"]: each for each in found["tables"]}
    t = tables["public.t"]
    assert (t["rows"], t["bytes"] > 100_000, t["key"], bool(t["read"])) == (
        5000,
        True,
        ["price"],
        True,
    )
    assert tables["public.whole"]["key"] == ["id"]
    assert "FULL: the whole row" in tables["public.whole"]["before"]
    assert sum(each["bytes"] or 0 for name, each in tables.items() if "part" in name) > 0
    assert t["mode"] == ""  # no sink has several forms of a table
    columns = {each["name"]: each for each in t["columns"]}
    assert columns["price"]["arrow"] == "decimal128(10, 2)"
    assert "ZonedTimestamp" in columns["at"]["schema"]
    assert found["snapshot"]["rows"] >= 5000
    assert shop.made() == []
    shown = shop.says("plan FILE --types", COLUMNS="200")
    assert "CREATE PUBLICATION" in shown
    assert "decimal128(10, 2)" in shown
    shop.run()
    after = shop.json("plan FILE --json")
    assert (after["statements"], after["slot"]) == ([], None)
    assert not any(each["read"] for each in after["tables"])
    assert shop.made() == [shop.slot] * 2


def test_a_file_that_names_no_sink_is_checked_with_a_warning(shop):
    shop.sink = {}
    (missing,) = [each for each in shop.json("doctor FILE --json") if each["name"] == "sink"]
    assert (missing["verdict"], "--sink NAME:VALUE" in missing["remedy"]) == ("warning", True)
    assert missing["found"] in {each["found"] for each in shop.json("plan FILE --json")["problems"]}
    assert "sink" not in {each["name"] for each in shop.json("doctor FILE --sink null --json")}


def test_a_plan_has_the_mode_that_the_spark_sink_gives_each_table(shop):
    shop.sink = {
        "type": "spark",
        "path": "lake",
        "mode": [r"public\.whole:append", r"public\.t:scd2", "scd1"],
        "history": [r"public\.t:keep", "none"],
        "deletes": [r"public\.t:soft", "hard"],
    }
    found = shop.json("plan FILE --json")
    modes = {each["table"]: each["mode"] for each in found["tables"]}
    assert modes["public.whole"] == "append"
    assert modes["public.t"] == "scd2, deletes soft"
    assert {mode for table, mode in modes.items() if "part" in table} == {"scd1, without history"}


def test_the_sql_of_a_plan_is_what_a_role_without_rights_needs(shop):
    role = "poor_" + shop.database.name[-20:]
    shop.database.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
    shop.source |= {"database.user": role, "signal.data.collection": "public.signals"}
    try:
        done = shop.waltap("plan FILE --sql")
        assert done.returncode == 1
        assert "GRANT SELECT ON" in done.stdout
        assert "CREATE TABLE" in done.stdout
        shop.database.psql(done.stdout)
        shop.says("plan FILE --sql")
        shop.run()
    finally:
        shop.says("drop FILE --yes")
        shop.database.execute(f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}")


def test_what_others_make_is_in_the_sql_and_what_stops_a_start_does_not_stop_a_plan(shop):
    shop.source["publication.autocreate.mode"] = "disabled"
    done = shop.waltap("plan FILE --sql")
    assert done.returncode == 1
    assert "CREATE PUBLICATION" in done.stdout
    shop.database.psql(done.stdout)
    assert shop.json("plan FILE --json")["by_others"] == []
    shop.run()
    shop.says("drop FILE --yes")
    shop.source |= {"publication.autocreate.mode": "filtered", "publication.name": "another"}
    shop.database.execute("CREATE TABLE keyless (a int)")
    found = shop.json("plan FILE --json", code=1)
    assert "public.keyless" in {each["table"] for each in found["tables"]}
    wrong = [each["name"] for each in found["problems"] if each["verdict"] == "error"]
    assert wrong == ["publication"]


# --- tables and snapshots ----------------------------------------------------------------------------

changed = pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 25)",
    settings={
        "snapshot.mode": "no_data",
        "incremental.snapshot.chunk.size": 10,
        "publication.autocreate.mode": "filtered",
        "table.exclude.list": "public.hidden",
        "waltap.new.tables": "warn",
        "snapshot.lock.timeout.ms": 120_000,
    },
)
"""A pipeline without signal table, whose publication names the tables there are: t."""


@changed
def test_a_table_joins_a_running_pipeline_with_its_rows(pipeline, database):
    """An open transaction has written to it: the command waits for that, and nothing is missing."""
    add = ("tables", "add", "FILE", 'public."New.One"')
    with pipeline.running() as run:
        database.execute(
            'CREATE TABLE "New.One" (id int PRIMARY KEY);'
            'INSERT INTO "New.One" SELECT generate_series(1, 25)'
        )
        with database.connect(autocommit=False) as writer:
            writer.execute('INSERT INTO "New.One" VALUES (26)')
            adding = in_background(pipeline.command, *add)
            run.until(
                lambda: (
                    adding.done()
                    or database.execute(
                        "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
                        " WHERE NOT granted AND relname = 'New.One'"
                    )[0][0]
                ),
                "the command to wait",
                within=120,
            )
            assert not adding.done(), adding.result(0).stderr
            writer.commit()
        done = adding.result(180)
        assert done.returncode == 0, done.stderr
        assert "p: public.New.One is streamed from now on" in done.stdout
        run.until(
            lambda: set(pipeline.destination.ids("public.New.One")) >= set(range(1, 27)), "the rows"
        )
        database.execute('INSERT INTO "New.One" VALUES (100)')
        run.until(lambda: pipeline.destination.ids("public.New.One", "c") == [100], "the stream")
        again = pipeline.command(*add, "--no-snapshot")
        assert again.stdout == "p: public.New.One is streamed already\n"
    assert sorted(pipeline.destination.ids("public.New.One", "r")) == list(range(1, 27))


@changed
def test_tables_join_and_leave_a_pipeline_and_names_that_are_none_change_nothing(pipeline):
    database, seen = pipeline.database, pipeline.destination
    early = pipeline.command("tables", "add", "FILE", "public.t", "--no-snapshot")
    assert early.stdout == "p: public.t is streamed by the first start\n"
    pipeline.catch_up()
    database.execute("CREATE TABLE hidden (id int PRIMARY KEY)")
    for names, reported in (
        (("public.hidden", "public.none", "none"), ("is no name of a table",)),
        (("public.hidden", "public.none"), ("is not captured", "there is no such table")),
    ):
        done = pipeline.command("tables", "add", "FILE", *names)
        assert done.returncode == 2
        assert all(words in done.stderr for words in reported)
    tables = database.execute("SELECT tablename FROM pg_publication_tables")
    assert tables == [("t",)]
    database.execute("CREATE TABLE n (id int PRIMARY KEY); INSERT INTO n VALUES (1), (2)")
    done = pipeline.command("tables", "add", "FILE", "public.n")
    assert done.stdout.splitlines() == [
        "p: public.n is streamed from now on",
        "p: the pipeline does not run; its next start reads the rows",
    ], done.stderr
    with pipeline.running() as run:
        run.until(lambda: sorted(seen.ids("n", "r")) == [1, 2], "the rows")
        done = pipeline.command("tables", "remove", "FILE", "public.n")
        assert done.returncode == 0, done.stderr
        assert "p: public.n is no longer streamed" in done.stdout
        assert r"table.exclude.list should name public\.n" in done.stdout
        database.execute("INSERT INTO n VALUES (3); INSERT INTO t VALUES (100)")
        run.until(lambda: 100 in seen.ids("t"), "the stream")
    assert seen.ids("n", "c") == []


@changed
def test_a_running_pipeline_reads_tables_again(pipeline):
    read = ("snapshot", "FILE", "public.t")
    with pipeline.running() as run:
        done = pipeline.command(*read, "--filter", "id > 20", "--id", "a", "--wait", "120")
        assert done.stdout == "p: signal a (execute-snapshot) was accepted\n", done.stderr
        run.until(
            lambda: sorted(pipeline.destination.ids("t", "r")) == list(range(21, 26)), "the rows"
        )
        statement = "SELECT * FROM public.t WHERE id < 3"
        done = pipeline.command(*read, "--blocking", "--filter", statement)
        assert done.returncode == 0, done.stderr
        run.until(lambda: pipeline.destination.ids("t", "r")[5:] == [1, 2], "the other rows")
    left = pipeline.command(*read)
    assert (left.returncode, "WT-6201" in left.stderr) == (1, True)


@changed
def test_the_command_says_which_tables_have_no_key_and_what_reads_them(pipeline):
    pipeline.database.execute(
        "CREATE TABLE keyless (id int); ALTER TABLE keyless REPLICA IDENTITY FULL;"
        "INSERT INTO keyless VALUES (1), (2)"
    )
    read, seen = ("snapshot", "FILE", "public.keyless", "--wait", "120"), pipeline.destination
    with pipeline.running() as run:
        alone = pipeline.command(*read)
        assert (alone.returncode, "was ignored: not read: public.keyless" in alone.stderr) == (
            1,
            True,
        )
        lacking = pipeline.command("snapshot", "FILE", "public.t", "--key", "nope", "--wait", "120")
        assert (lacking.returncode, "no column 'nope'" in lacking.stderr) == (1, True)
        both = pipeline.command(*read, "public.t", "public.missing")
        assert (both.returncode, "was accepted in part: " in both.stderr) == (1, True)
        assert "not read: public.keyless: the table has no key" in both.stderr
        assert "not read: public.missing: no such table is captured" in both.stderr
        run.until(lambda: len(seen.ids("t", "r")) == 25, "the rows of the other table")
        assert "`waltap snapshot FILE TABLE --blocking`" in alone.stderr
        for more in ("--blocking",), ("--key", "id"):
            before = len(seen.ids("keyless", "r"))
            done = pipeline.command(*read, *more)
            assert done.returncode == 0, done.stderr
            run.until(lambda: len(seen.ids("keyless", "r")) == before + 2, "its rows")
