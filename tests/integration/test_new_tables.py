"""Tables that come while a pipeline runs or is down: on a real server, reported, and read where possible."""

import contextlib
from pathlib import Path
from typing import Any

import pytest
from tests.harness.pipeline import QUICK, PipelineRig
from tests.harness.servers.postgres import Database

from waltap.errors import WaltapError
from waltap.pipeline.stages import new_tables
from waltap.pipeline.stages.new_tables import TablesNotStreamed
from waltap.ports.offsets.gaps import GapCertificates
from waltap_postgres.replication.publications import PublicationSet

WARN = {"waltap.new.tables": "warn"}
FILTERED = {
    "publication.autocreate.mode": "filtered",
    "table.include.list": r"public\..*",
    **WARN,
}
SNAPSHOT = {"waltap.new.tables": "snapshot"}
SIGNALS = {"signal.data.collection": "public.signals", **SNAPSHOT}


@pytest.fixture
def old(database) -> Database:
    database.execute(
        "CREATE TABLE old (id int PRIMARY KEY); INSERT INTO old VALUES (1);"
        "CREATE TABLE signals (id varchar(42) PRIMARY KEY, type varchar(32), data varchar(2048))"
    )
    return database


def made(database: Database, name: str = "fresh", key: str = "PRIMARY KEY") -> None:
    database.execute(
        f"CREATE TABLE {name} (id int {key}); INSERT INTO {name} SELECT generate_series(1, 50)"
    )


def run(pipeline: PipelineRig, **settings: Any) -> list[tuple[str, str]]:
    """Run until everything is delivered; return what was reported new tables."""
    with pipeline.running(**settings) as run:
        pipeline.database.execute("INSERT INTO old SELECT max(id) + 1 FROM old")
        ((last,),) = pipeline.database.execute("SELECT max(id) FROM old")
        run.until(lambda: last in pipeline.destination.ids("old"), "the last row")
        return run.notices.new_tables


def test_a_table_that_joins_a_filtered_publication_is_reported_once(old, pipeline, caplog):
    pipeline.settings |= FILTERED
    assert run(pipeline) == []
    made(old)
    assert run(pipeline) == [("public.fresh", "incomplete")]
    assert "rows and changes from before are missing" in caplog.text
    old.execute("INSERT INTO fresh VALUES (51)")
    assert run(pipeline) == []
    assert pipeline.destination.ids("fresh") == [51]


@pytest.mark.parametrize("settings", [SNAPSHOT, SIGNALS], ids=["no signal table", "signal table"])
def test_the_rows_of_a_table_that_joins_are_read(old, pipeline, settings):
    pipeline.settings |= FILTERED | settings
    run(pipeline)
    made(old)
    made(old, '"Odd.(name"')
    with pipeline.running() as there:
        destination, odd = pipeline.destination, "public.Odd.(name"
        old.execute("INSERT INTO fresh VALUES (51)")
        there.until(lambda: set(destination.ids("fresh")) == set(range(1, 52)), "the rows")
        there.until(lambda: len({e.row["id"] for e in destination.of(odd)}) == 50, "the others")
        assert sorted(there.notices.new_tables) == [(odd, "snapshot"), ("public.fresh", "snapshot")]
    assert run(pipeline) == []


def test_a_table_that_was_dropped_and_made_again_is_new(old, pipeline):
    pipeline.settings |= FILTERED | SIGNALS
    made(old)
    run(pipeline)
    old.execute("DROP TABLE fresh")
    made(old)
    with pipeline.running() as there:
        there.until(lambda: len(pipeline.destination.ids("fresh", "r")) >= 100, "the rows again")
        assert there.notices.new_tables == [("public.fresh", "snapshot")]


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        ({"waltap.new.tables": "ignore"}, []),
        (SIGNALS | WARN, [("public.fresh", "incomplete")]),
        (SIGNALS | {"publication.keyless.tables": "inserts"}, [("public.fresh", "incomplete")]),
        ({"publication.autocreate.mode": "all_tables"}, [("public.fresh", "joined")]),
        ({"plugin.name": "wal2json"}, [("public.fresh", "joined")]),
    ],
)
def test_the_policy_and_the_publication_decide(old, pipeline, settings, reported):
    key = "" if "publication.keyless.tables" in settings else "PRIMARY KEY"
    pipeline.settings |= FILTERED | settings
    run(pipeline)
    made(old, key=key)
    assert run(pipeline) == reported
    complete = reported == [("public.fresh", "joined")]
    assert pipeline.destination.ids("fresh") == (list(range(1, 51)) if complete else [])


def test_a_table_that_the_profile_captures_later_lacks_rows_whatever_the_publication(old, pipeline):
    settings = FILTERED | {"publication.autocreate.mode": "all_tables"}
    pipeline.settings |= settings
    made(old)
    assert run(pipeline, **{"table.include.list": r"public\.old"}) == []
    reported = run(pipeline, **{"table.include.list": r"public\.(old|fresh)"})
    assert reported == [("public.fresh", "incomplete")]


@pytest.mark.parametrize("policy", ["warn", "snapshot", "ignore"])
def test_a_table_that_was_left_out_for_a_while_lacks_what_went(old, pipeline, policy, caplog):
    """Also where the starts without it read all that they capture. One that is new is reported as such."""
    own = {"publication.autocreate.mode": "all_tables", "waltap.new.tables": policy}
    pipeline.settings |= FILTERED | own
    for name in ("fresh", "new"):
        made(old, name)
    run(pipeline, **{"table.include.list": r"public\.(old|fresh)"})
    for mode in ("initial", "always", "initial"):
        assert run(pipeline, **{"table.include.list": r"public\.old", "snapshot.mode": mode}) == []
    old.execute("DELETE FROM fresh WHERE id = 7")
    reported = run(pipeline, **{"table.include.list": r"public\.(old|fresh|new)"})
    event = "snapshot" if policy == "snapshot" else "incomplete"
    names = () if policy == "ignore" else ("public.fresh", "public.new")
    assert sorted(reported) == [(name, event) for name in names]
    assert pipeline.destination.missed == ["public.fresh"]
    said = [r.getMessage() for r in caplog.records if "captured" in r.getMessage()]
    again = [each for each in said if "was captured before" in each]
    assert [each.split()[1] for each in again] == list(names[:1])
    assert all("one run with snapshot.mode=always" in each for each in again)
    pipeline.destination.missed.clear()
    assert run(pipeline, **{"table.include.list": r"public\.(old|fresh|new)"}) == []
    assert pipeline.destination.missed == []


@pytest.mark.parametrize(("mode", "event"), [("filtered", "uncaptured"), ("all_tables", "created")])
def test_a_table_that_is_made_while_the_engine_runs_is_reported(old, pipeline, mode, event):
    pipeline.settings |= FILTERED | {"publication.autocreate.mode": mode}
    with pipeline.running() as there:
        made(old)
        there.until(lambda: there.notices.new_tables, "the news")
        assert there.notices.new_tables == [("public.fresh", event)]
    reported = run(pipeline)
    assert reported == ([("public.fresh", "incomplete")] if mode == "filtered" else [])


@pytest.mark.parametrize(("policy", "event"), [("warn", "uncaptured"), ("snapshot", "snapshot")])
def test_a_table_that_is_made_during_the_initial_snapshot_is_new(old, pipeline, policy, event):
    """The publication is older, and the snapshot does not read the table."""
    pipeline.settings |= FILTERED | {"waltap.new.tables": policy}
    held, release = pipeline.destination.hold()
    with pipeline.running(ready=False) as there:
        there.until(held.is_set, "the snapshot")
        made(old)
        release.set()
        there.until(lambda: there.notices.new_tables, "the news")
        assert there.notices.new_tables == [("public.fresh", event)]
        if policy == "snapshot":
            there.until(lambda: len(pipeline.destination.ids("fresh", "r")) == 50, "its rows")


@pytest.mark.parametrize("settings", [SNAPSHOT, SIGNALS], ids=["no signal table", "signal table"])
def test_a_table_that_is_made_while_the_engine_runs_joins_at_once_with_its_rows(
    old, pipeline, settings
):
    pipeline.settings |= FILTERED | settings
    destination = pipeline.destination
    with pipeline.running() as there:
        made(old)
        there.until(lambda: there.notices.new_tables, "the news")
        assert there.notices.new_tables == [("public.fresh", "snapshot")]
        old.execute("INSERT INTO fresh VALUES (51)")
        there.until(lambda: set(destination.ids("fresh")) == set(range(1, 52)), "the rows")
    assert run(pipeline) in (
        [],
        [("public.fresh", "snapshot")],
    )  # it stopped before that was stored
    assert run(pipeline) == []
    assert 51 in destination.ids("fresh", "c")


@pytest.mark.parametrize(("policy", "event"), [("warn", "incomplete"), ("snapshot", "snapshot")])
def test_a_table_that_gets_a_captured_name_while_the_engine_runs_lacks_rows(
    old, pipeline, policy, event
):
    """The publication of all tables has its changes from then on."""
    own = {"publication.autocreate.mode": "all_tables", "waltap.new.tables": policy}
    pipeline.settings |= FILTERED | own | {"table.include.list": r"public\.(old|fresh)"}
    made(old, "staged")
    destination = pipeline.destination
    with pipeline.running() as there:
        old.execute("ALTER TABLE staged RENAME TO fresh")
        there.until(lambda: there.notices.new_tables, "the news")
        assert there.notices.new_tables == [("public.fresh", event)]
        old.execute("INSERT INTO fresh VALUES (51)")
        wanted = set(range(1 if policy == "snapshot" else 51, 52))
        there.until(lambda: set(destination.ids("fresh")) == wanted, "the rows")
    assert run(pipeline) == []


def test_a_new_table_has_its_rows_after_a_lock_of_the_signal_table(old, pipeline, monkeypatch):
    monkeypatch.setattr(new_tables, "POLLS_PER_ANSWER", 1)
    pipeline.settings |= FILTERED | SIGNALS
    with pipeline.running() as run, old.connect() as other:
        other.execute("BEGIN; LOCK TABLE signals IN ACCESS EXCLUSIVE MODE")
        made(old)
        run.until(lambda: run.notices.new_tables, "the new table")
        other.execute("ROLLBACK")
        run.until(lambda: len(pipeline.destination.ids("fresh", "r")) == 50, "its rows")


def test_a_table_that_a_transaction_fills_joins_when_it_has_ended(
    old, pipeline, caplog, monkeypatch
):
    """The stream of the other tables does not wait meanwhile."""
    pipeline.settings |= FILTERED | SNAPSHOT
    destination, real, writers = pipeline.destination, PublicationSet.publish, list[Any]()

    def publish(self: PublicationSet, tables: Any, **named: Any) -> Any:
        if ("public", "fresh") in tables and writers:
            writers.pop().execute("INSERT INTO fresh VALUES (1)")
        return real(self, tables, **named)

    monkeypatch.setattr(PublicationSet, "publish", publish)
    with pipeline.running() as there, old.connect(autocommit=False) as writer:
        writers.append(writer)
        old.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
        made(old, "other")
        there.until(lambda: "once the transactions have ended" in caplog.text, "the reason")
        there.until(lambda: len(destination.ids("other", "r")) == 50, "another new table")
        assert there.notices.new_tables == [("public.other", "snapshot")]
        writer.commit()
        there.until(lambda: destination.ids("fresh", "r") == [1], "its row")
        old.execute("INSERT INTO fresh VALUES (2)")
        there.until(lambda: destination.ids("fresh", "c") == [2], "the stream")
    assert caplog.text.count("once the transactions have ended") == 1
    assert run(pipeline) == []


@pytest.mark.parametrize("settings", [SNAPSHOT, SIGNALS], ids=["no signal table", "signal table"])
def test_rows_of_a_writer_that_a_joining_table_has_come_too(old, tmp_path, settings, caplog):
    """The stream does not bring what was written before the table was published, and no reading sees it
    before it commits."""
    pipeline = PipelineRig(old, tmp_path, FILTERED | settings)
    run(pipeline)
    made(old)
    with old.connect(autocommit=False) as writer:
        writer.execute("INSERT INTO fresh VALUES (51)")
        for _ in range(2):
            with pipeline.running() as there:
                there.until(lambda: "rows are read once" in caplog.text, "the reason")
                assert there.notices.new_tables == []
        with pipeline.running() as there:
            writer.commit()
            there.until(
                lambda: set(pipeline.destination.ids("fresh", "r")) == set(range(1, 52)), "all"
            )
            assert there.notices.new_tables == [("public.fresh", "snapshot")]
    assert run(pipeline) == []


def test_a_table_that_somebody_publishes_under_a_run_joins_with_the_rows_that_are_published(
    old, tmp_path
):
    if old.server.version < 150000:
        pytest.skip("publications have no row filters")
    old.execute(f"CREATE PUBLICATION {old.name} FOR TABLE old")
    pipeline = PipelineRig(old, tmp_path, {"publication.autocreate.mode": "disabled", **SNAPSHOT})
    with pipeline.running() as there, old.connect(autocommit=False) as writer:
        made(old)
        there.until(lambda: there.notices.new_tables, "the news")
        writer.execute("INSERT INTO fresh VALUES (51)")
        old.execute(f"ALTER PUBLICATION {old.name} ADD TABLE fresh WHERE (id > 10)")
        old.execute("INSERT INTO fresh VALUES (60), (0)")
        there.until(lambda: 60 in pipeline.destination.ids("fresh"), "what is streamed")
        writer.commit()
        wanted = [*range(11, 52), 60]
        there.until(lambda: set(pipeline.destination.ids("fresh", "r")) == set(wanted), "the rows")
        found = [("public.fresh", "uncaptured"), ("public.fresh", "snapshot")]
        assert there.notices.new_tables == found
    assert run(pipeline) == []
    assert set(pipeline.destination.ids("fresh")) == set(wanted)


TAKEN_OUT = {
    "taken out": "ALTER PUBLICATION {p} DROP TABLE fresh",
    "made anew": "DROP PUBLICATION {p}; CREATE PUBLICATION {p} FOR TABLE old, signals",
}


NARROWED_AND_WIDENED = {
    "row filter": "ALTER PUBLICATION {p} SET TABLE old, signals, fresh WHERE (id < 0);"
    "INSERT INTO fresh VALUES (60); ALTER PUBLICATION {p} SET TABLE old, signals, fresh",
    "taken out": "ALTER PUBLICATION {p} DROP TABLE fresh; INSERT INTO fresh VALUES (60);"
    "ALTER PUBLICATION {p} ADD TABLE fresh",
    "column list": "ALTER PUBLICATION {p} SET TABLE old, signals, fresh (id);"
    "INSERT INTO fresh VALUES (60); ALTER PUBLICATION {p} SET TABLE old, signals, fresh",
}


@pytest.mark.parametrize(
    ("how", "running"),
    [("row filter", False), ("row filter", True), ("taken out", True), ("column list", False)],
)
def test_a_table_that_was_streamed_less_of_for_a_while_joins_again(old, pipeline, how, running):
    """Nothing is wrong when the start looks, and rows are missing all the same."""
    made(old)
    pipeline.settings |= FILTERED
    assert run(pipeline) == []
    change = NARROWED_AND_WIDENED[how].format(p=pipeline.slot)
    with pipeline.running() if running else contextlib.nullcontext():
        old.run(*change.split(";"))
    assert run(pipeline) == [("public.fresh", "incomplete")]
    assert run(pipeline) == []


@pytest.mark.parametrize(
    ("how", "signals"), [("taken out", True), ("taken out", False), ("made anew", True)]
)
def test_a_table_that_was_taken_out_of_the_publication_joins_again(old, pipeline, how, signals):
    pipeline.settings |= FILTERED | (SIGNALS if signals else {})
    made(old)
    assert run(pipeline) == []
    old.execute(TAKEN_OUT[how].format(p=old.name))
    old.execute("INSERT INTO fresh VALUES (51)")
    with pipeline.running() as there:
        old.execute("INSERT INTO fresh VALUES (52)")
        there.until(lambda: 52 in pipeline.destination.ids("fresh"), "what comes after")
        if signals:
            there.until(lambda: 51 in pipeline.destination.ids("fresh"), "what came meanwhile")
        reported = "snapshot" if signals else "incomplete"
        assert there.notices.new_tables == [("public.fresh", reported)]
    assert run(pipeline) == []


def test_a_start_that_ends_before_it_streams_has_stored_what_it_knows(old, pipeline):
    """Of its tables, and of what it put into the publication."""

    def fails() -> None:
        with pytest.raises(WaltapError), pipeline.running(**{"slot.stream.params": "no_such=1"}):
            pass

    pipeline.settings |= FILTERED
    fails()
    assert pipeline.destination.ids("old", "r") == [1]
    made(old)
    assert run(pipeline) == [("public.fresh", "incomplete")]
    assert pipeline.destination.ids("old", "r") == [1]
    old.execute(f"ALTER PUBLICATION {old.name} DROP TABLE fresh; INSERT INTO fresh VALUES (51)")
    fails()
    published = "SELECT 1 FROM pg_publication_tables WHERE pubname = %s AND tablename = 'fresh'"
    assert old.execute(published, old.name)
    assert run(pipeline) == [("public.fresh", "incomplete")]


LESS = {
    "operations": "SET (publish = 'insert')",
    "rows": "SET TABLE old, signals, fresh WHERE (id < 10)",
    "columns": "SET TABLE old, signals, fresh (id)",
}
LEFT_OUT = {
    "operations": "no update, delete",
    "rows": "of public.fresh only rows WHERE (id < 10)",
    "columns": "of public.fresh no column v",
}


@pytest.mark.parametrize(("what", "sql"), LESS.items(), ids=LESS)
def test_a_publication_of_ours_that_was_made_to_publish_less_is_put_right(
    old, pipeline, caplog, what, sql
):
    old.execute("CREATE TABLE fresh (id int PRIMARY KEY, v int); INSERT INTO fresh VALUES (1, 1)")
    pipeline.settings |= FILTERED | SIGNALS
    assert run(pipeline) == []
    old.execute(f"ALTER PUBLICATION {old.name} {sql}")
    assert LEFT_OUT[what] in pipeline.doctor()["publication"].found
    old.execute("UPDATE fresh SET v = 2; INSERT INTO fresh VALUES (51, 51)")

    def values() -> dict[int, int]:
        rows = [e.row for e in pipeline.destination.of("fresh") if "v" in e.row]
        return {int(row["id"]): int(row["v"]) for row in rows}

    with pipeline.running() as there:
        there.until(lambda: values() == {1: 2, 51: 51}, "what was left out")
        old.execute("UPDATE fresh SET v = 3")
        there.until(lambda: values() == {1: 3, 51: 3}, "what comes after")
        tables = {"public.old", "public.fresh"} if what == "operations" else {"public.fresh"}
        assert {(t, "snapshot") for t in tables} == set(there.notices.new_tables)
    assert "the publication lacks captured changes" in caplog.text
    caplog.clear()
    assert run(pipeline) == []
    assert "the publication lacks captured changes" not in caplog.text


@pytest.mark.parametrize("sql", LESS.values(), ids=LESS)
def test_a_publication_of_somebody_else_is_left_alone_with_a_warning_that_mends_it(
    old, pipeline, caplog, sql
):
    old.execute("CREATE TABLE fresh (id int PRIMARY KEY, v int)")
    old.execute(f"CREATE PUBLICATION {old.name} FOR TABLE old, signals, fresh")
    old.execute(f"ALTER PUBLICATION {old.name} {sql}")
    pipeline.settings |= FILTERED | {"publication.autocreate.mode": "disabled"}
    assert run(pipeline) == []
    (warned,) = (
        r.getMessage()
        for r in caplog.records
        if "the publication lacks captured changes" in r.getMessage()
    )
    old.run(*warned[warned.index("ALTER PUBLICATION") :].split("; "))
    caplog.clear()
    run(pipeline)
    assert "the publication lacks captured changes" not in caplog.text


def test_columns_and_operations_that_the_profile_leaves_out_need_not_be_published(
    old, tmp_path, caplog
):
    old.execute("CREATE TABLE fresh (id int PRIMARY KEY, v int)")
    old.execute(f"CREATE PUBLICATION {old.name} FOR TABLE old, signals, fresh (id)")
    old.execute(f"ALTER PUBLICATION {old.name} SET (publish = 'insert, update')")
    less = {"skipped.operations": "d,t", "column.exclude.list": r"public\.fresh\.v"}
    run(PipelineRig(old, tmp_path, FILTERED | {"publication.autocreate.mode": "disabled"} | less))
    assert "the publication lacks captured changes" not in caplog.text


def test_partitions_come_as_the_profile_says(old, pipeline):
    old.execute(
        "CREATE TABLE fresh (id int PRIMARY KEY) PARTITION BY RANGE (id);"
        "CREATE TABLE fresh_1 PARTITION OF fresh FOR VALUES FROM (0) TO (1000)"
    )
    pipeline.settings |= FILTERED
    assert run(pipeline) == []
    old.execute(f"ALTER PUBLICATION {old.name} SET (publish_via_partition_root = true)")
    with pipeline.running() as there:
        old.execute("INSERT INTO fresh VALUES (1)")
        there.until(lambda: pipeline.destination.ids("fresh_1") == [1], "the row")
        assert there.notices.new_tables == [("public.fresh_1", "incomplete")]


BY_HAND = {"publication.autocreate.mode": "disabled", "publication.name": "p", **WARN}


def gap_under_a_run(
    database: Database, folder: Path, settings: dict[str, str], *statements: str
) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
    """Execute ``statements`` under a run; return the tables of the gap that it finds, and what was reported."""
    pipeline = PipelineRig(database, folder, settings | QUICK)
    gaps = GapCertificates(pipeline.offset_file.parent)
    with pipeline.running() as there:
        for statement in statements:
            database.execute(statement)
        there.until(gaps.open, "a certificate")
    (gap,) = gaps.open()
    assert gap.code == TablesNotStreamed.code
    return gap.tables, there.notices.new_tables


SENDS = "SET (publish = 'insert, update, delete')"
TAKEN, PUT_BACK = (f"ALTER PUBLICATION p {word} TABLE lost" for word in ("DROP", "ADD"))
SENT_LESS = {
    "table": ("TABLE old, lost", TAKEN, PUT_BACK),
    "table for good": ("TABLE old, lost", TAKEN, ""),
    "operations": ("TABLE old, lost", "ALTER PUBLICATION p SET (publish = 'delete')", f"ALTER PUBLICATION p {SENDS}"),
    "operations of all": (
        "ALL TABLES", "ALTER PUBLICATION p SET (publish = 'delete')", f"ALTER PUBLICATION p {SENDS}",
    ),
    "schema": (
        "TABLES IN SCHEMA public",
        "ALTER PUBLICATION p SET TABLE old",
        "ALTER PUBLICATION p SET TABLES IN SCHEMA public",
    ),
    "made anew with less": (
        "TABLE old, lost",
        "DROP PUBLICATION p; CREATE PUBLICATION p FOR TABLE old",
        PUT_BACK,
    ),
    "unlogged": ("ALL TABLES", "ALTER TABLE lost SET UNLOGGED", "ALTER TABLE lost SET LOGGED"),
    "unlogged of a schema": (
        "TABLES IN SCHEMA public", "ALTER TABLE lost SET UNLOGGED", "ALTER TABLE lost SET LOGGED",
    ),
    "unlogged, with TOAST": (
        "ALL TABLES",
        "ALTER TABLE lost SET UNLOGGED",
        "ALTER TABLE lost SET LOGGED; UPDATE lost SET id = id + 9",
    ),
    "unlogged, wal2json": ("ALL TABLES", "ALTER TABLE lost SET UNLOGGED", "ALTER TABLE lost SET LOGGED"),
    "in another schema": (
        "TABLES IN SCHEMA public",
        "CREATE SCHEMA s; ALTER TABLE lost SET SCHEMA s",
        "ALTER TABLE s.lost SET SCHEMA public",
    ),
    "another name": ("ALL TABLES", "ALTER TABLE lost RENAME TO x", "ALTER TABLE x RENAME TO lost"),
}  # fmt: skip
"""What a publication has, what makes it send less of `lost`, and what puts that right."""


@pytest.mark.parametrize("case", SENT_LESS)
def test_what_was_sent_less_for_a_moment_is_a_gap(old, tmp_path, case):
    publishes, away, back = SENT_LESS[case]
    if "SCHEMA" in publishes and old.server.version < 150000:
        pytest.skip("publications have no schemas")
    text = ", v text" if "TOAST" in case else ""
    old.execute(f"CREATE TABLE lost (id int PRIMARY KEY{text})")
    old.execute(f"CREATE PUBLICATION p FOR {publishes}")
    moved = {"in another schema": "s.lost", "another name": "x"}.get(case, "lost")
    filled = f"INSERT INTO {moved} SELECT generate_series(1, 5)"
    named = {"table.include.list": r"public\.(old|lost)"}
    named |= {"plugin.name": "wal2json"} if "wal2json" in case else {}
    tables, reported = gap_under_a_run(
        old, tmp_path, BY_HAND | named, away, filled, *[back] * bool(back)
    )
    assert "public.lost" in tables
    if case.startswith("table"):
        assert tables == ("public.lost",)
        assert ("public.lost", "changed" if back else "interrupted") in reported


def test_operations_left_out_for_a_moment_of_a_publication_of_ours_are_a_gap(old, tmp_path):
    ours = f"ALTER PUBLICATION {old.name}"
    less = f"{ours} SET (publish = 'delete')"
    added = "INSERT INTO old VALUES (7)"
    tables, _ = gap_under_a_run(old, tmp_path, FILTERED, less, added, f"{ours} {SENDS}")
    assert "public.old" in tables


LEFT_OUT_NOTHING = """
    VACUUM FULL words; VACUUM FULL numbers; CLUSTER words USING words_pkey
    TRUNCATE words; TRUNCATE numbers
    BEGIN; TRUNCATE numbers; INSERT INTO numbers SELECT generate_series(1, 9); COMMIT
    ALTER TABLE numbers ALTER id TYPE bigint; ALTER TABLE words ADD made timestamptz DEFAULT clock_timestamp()
    GRANT SELECT ON words, numbers TO PUBLIC; ANALYZE words; ALTER TABLE words ADD CHECK (id > 0)
    ALTER TABLE words OWNER TO pg_monitor
    INSERT INTO words VALUES (10, 'x'); VACUUM FULL words; UPDATE words SET word = 'y'; VACUUM words
    REINDEX TABLE words; ALTER TABLE words REPLICA IDENTITY FULL; ALTER TABLE numbers SET (fillfactor = 50)
    ALTER TABLE numbers ADD word text; TRUNCATE numbers
"""


@pytest.mark.parametrize("publishes", ["ALL TABLES", "TABLE old, words, numbers", ""])
def test_what_leaves_nothing_out_is_no_gap(old, tmp_path, publishes):
    old.execute(
        "CREATE TABLE words (id int PRIMARY KEY, word text); CREATE TABLE numbers (id int PRIMARY KEY);"
        "INSERT INTO words SELECT id, 'a' FROM generate_series(1, 9) id;"
        "INSERT INTO numbers SELECT generate_series(1, 9)"
    )
    old.execute(f"CREATE PUBLICATION p FOR {publishes}" if publishes else "")
    pipeline = PipelineRig(
        old, tmp_path, BY_HAND if publishes else {"plugin.name": "wal2json", **WARN}
    )
    run(pipeline)
    gaps = GapCertificates(pipeline.offset_file.parent)
    for line in LEFT_OUT_NOTHING.strip().splitlines():
        old.run(*line.split(";"))
        run(pipeline)
        assert gaps.open() == [], line


def test_a_publication_that_was_not_there_for_a_moment_is_a_gap_where_the_server_goes_on(
    newest_database, tmp_path
):
    made = "CREATE PUBLICATION p FOR TABLE old"
    newest_database.execute(f"CREATE TABLE old (id int PRIMARY KEY); {made}")
    added = "INSERT INTO old VALUES (7)"
    tables, _ = gap_under_a_run(
        newest_database, tmp_path, BY_HAND, "DROP PUBLICATION p", added, made
    )
    assert tables == ("public.old",)


def test_a_table_that_was_left_out_while_nobody_ran_is_a_gap(old, pipeline):
    old.execute("CREATE TABLE lost (id int PRIMARY KEY)")
    old.execute("CREATE PUBLICATION p FOR TABLE old, lost, signals")
    pipeline.settings |= BY_HAND
    run(pipeline)
    old.execute(f"{TAKEN}; INSERT INTO lost VALUES (1)")
    for _ in range(2):  # one gap, however often it starts
        run(pipeline)
    (gap,) = GapCertificates(pipeline.offset_file.parent).open()
    assert gap.tables == ("public.lost",)
