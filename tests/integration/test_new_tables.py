"""Tables that come while a pipeline runs or is down: on a real server, reported, and read where possible."""

import contextlib
from typing import Any

import pytest
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

from waltap.errors import WaltapError
from waltap.pipeline.stages.new_tables import TablesNotStreamed
from waltap.ports.offsets.file_store import FileOffsetStore
from waltap.ports.offsets.gaps import GapCertificates
from waltap.ports.offsets.offset import Offset, OffsetUnwritable
from waltap_postgres.errors import IdentityMissing
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


@pytest.mark.parametrize("policy", ["snapshot", "ignore"])
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


@pytest.mark.parametrize("policy", [WARN, SNAPSHOT], ids=["warn", "snapshot"])
def test_a_new_table_that_no_start_would_publish_is_captured_when_the_remedy_is_done(
    old, pipeline, policy, caplog
):
    """A start is refused for the same reason."""
    pipeline.settings |= FILTERED | policy
    with pipeline.running() as there:
        made(old, key="")
        there.until(lambda: there.notices.new_tables, "the news")
        assert there.notices.new_tables == [("public.fresh", "uncaptured")]
    (said,) = (m for m in caplog.messages if m.startswith("table public.fresh is new and not"))
    assert "joins at the next start" not in caplog.text
    with pytest.raises(IdentityMissing) as refused:
        run(pipeline)
    assert str(refused.value) in said
    old.execute("DROP TABLE fresh")
    with pipeline.running() as there:
        made(old, key="")
        there.until(lambda: there.notices.new_tables, "the news")
        old.execute(refused.value.fields["sql"])
        done = pipeline.command("tables", "add", "FILE", "public.fresh")
        assert done.returncode == 0, done.stderr
        assert "not read: public.fresh: the table has no key" in done.stderr
        old.execute("INSERT INTO fresh VALUES (51)")
        there.until(lambda: pipeline.destination.ids("fresh", "c") == [51], "the stream")


def test_a_table_that_is_made_during_the_initial_snapshot_is_new(old, pipeline):
    """The publication is older, and the snapshot does not read the table."""
    pipeline.settings |= FILTERED | SNAPSHOT
    held, release = pipeline.destination.hold()
    with pipeline.running(ready=False) as there:
        there.until(held.is_set, "the snapshot")
        made(old)
        release.set()
        there.until(lambda: there.notices.new_tables, "the news")
        assert there.notices.new_tables == [("public.fresh", "snapshot")]
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


def test_tables_that_join_together_are_asked_for_together(old, pipeline):
    """One signal for each would take a look at all tables for each. Its data has a limit."""
    pipeline.settings |= FILTERED | SNAPSHOT | {"waltap.signal.max.bytes": 1024}
    run(pipeline, **{"table.include.list": r"public\.old"})
    tables = [f"fresh_with_a_long_name_{number}" for number in range(30)]
    old.execute(";".join(f"CREATE TABLE {name} (id int PRIMARY KEY)" for name in tables))
    old.execute(";".join(f"INSERT INTO {name} VALUES (7)" for name in tables))
    with pipeline.running() as there:
        assert [kind for kind, _ in there.notices.signals] == ["execute-snapshot"] * 2
        there.until(lambda: all(pipeline.destination.ids(t) == [7] for t in tables), "the rows")


def test_a_request_for_rows_that_cannot_be_stored_ends_the_run_with_its_cause(
    old, pipeline, monkeypatch
):
    pipeline.settings |= FILTERED | SNAPSHOT
    run(pipeline)
    store, room = FileOffsetStore.store, [False]

    def full(self: FileOffsetStore, offset: Offset) -> None:
        if offset.signals.get("queue") and not room[0]:
            room[0] = True  # of another try
            raise OffsetUnwritable("no space left", path="x")
        store(self, offset)

    monkeypatch.setattr(FileOffsetStore, "store", full)
    with pytest.raises(OffsetUnwritable), pipeline.running() as there:
        made(old)
        there.join()
    with pipeline.running() as there:
        there.until(lambda: len(pipeline.destination.ids("fresh")) >= 50, "the rows")


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


def test_a_captured_table_that_gets_another_name_is_reported_once(old, pipeline, caplog):
    made(old)
    pipeline.settings |= FILTERED | {"table.include.list": r"public\.(old|fresh)"}

    def said() -> list[str]:
        return [r.getMessage() for r in caplog.records if "is called" in r.getMessage()]

    with pipeline.running() as there:
        there.until(lambda: len(pipeline.destination.ids("fresh")) == 50, "the first rows")
        old.execute("ALTER TABLE fresh RENAME TO away")
        there.until(said, "the warning")
        old.execute("ALTER TABLE away RENAME TO further; CREATE TABLE later (id int PRIMARY KEY)")
        old.execute("ALTER TABLE further RENAME TO fresh; INSERT INTO fresh VALUES (51)")
        there.until(lambda: 51 in pipeline.destination.ids("fresh"), "a row after it")
    assert [text.split(", ")[0] for text in said()] == [
        "captured table public.fresh is called public.away now"
    ]


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
    "operations": ("SET (publish = 'insert')", "no update, delete"),
    "rows": (
        "SET TABLE old, signals, fresh WHERE (id < 10)",
        "of public.fresh only rows WHERE (id < 10)",
    ),
    "columns": ("SET TABLE old, signals, fresh (id)", "of public.fresh no column v"),
}
"""What is done to a publication, and what `doctor` says that it leaves out."""


@pytest.mark.parametrize("what", LESS)
def test_a_publication_of_ours_that_was_made_to_publish_less_is_put_right(
    old, pipeline, caplog, what
):
    sql, left_out = LESS[what]
    old.execute("CREATE TABLE fresh (id int PRIMARY KEY, v int); INSERT INTO fresh VALUES (1, 1)")
    pipeline.settings |= FILTERED | SIGNALS
    assert run(pipeline) == []
    old.execute(f"ALTER PUBLICATION {old.name} {sql}")
    assert left_out in pipeline.doctor()["publication"].found
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


@pytest.mark.parametrize("what", LESS)
def test_a_publication_of_somebody_else_is_left_alone_with_a_warning_that_mends_it(
    old, pipeline, caplog, what
):
    old.execute("CREATE TABLE fresh (id int PRIMARY KEY, v int)")
    old.execute(f"CREATE PUBLICATION {old.name} FOR TABLE old, signals, fresh")
    old.execute(f"ALTER PUBLICATION {old.name} {LESS[what][0]}")
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


SENDS = "SET (publish = 'insert, update, delete')"
TAKEN, PUT_BACK = (f"ALTER PUBLICATION p {word} TABLE lost" for word in ("DROP", "ADD"))
SENT_LESS = {
    "table": ("TABLE old, lost", TAKEN, PUT_BACK),
    "made again": ("TABLE old, lost", TAKEN, "DROP PUBLICATION p; CREATE PUBLICATION p FOR ALL TABLES"),
    "operations": ("TABLE old, lost", "ALTER PUBLICATION p SET (publish = 'delete')", f"ALTER PUBLICATION p {SENDS}"),
    "schema": (
        "TABLES IN SCHEMA public",
        "ALTER PUBLICATION p SET TABLE old",
        "ALTER PUBLICATION p SET TABLES IN SCHEMA public",
    ),
    "unlogged": ("ALL TABLES", "ALTER TABLE lost SET UNLOGGED", "ALTER TABLE lost SET LOGGED"),
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
    pipeline = PipelineRig(old, tmp_path, BY_HAND | named)
    gaps = GapCertificates(pipeline.offset_file.parent)
    with pipeline.running() as there:
        for statement in (away, filled, back):
            old.execute(statement)
        there.until(gaps.open, "a certificate")
    (gap,) = gaps.open()
    assert gap.code == TablesNotStreamed.code
    assert "public.lost" in gap.tables
    if case == "table":
        assert gap.tables == ("public.lost",)
        assert ("public.lost", "changed") in there.notices.new_tables


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


def test_another_publication_that_had_less_for_a_while_is_a_gap(old, pipeline):
    old.execute("CREATE TABLE lost (id int PRIMARY KEY)")
    old.execute("CREATE PUBLICATION p FOR TABLE old, lost; CREATE PUBLICATION q FOR TABLE old")
    pipeline.settings |= BY_HAND
    run(pipeline)
    old.run("INSERT INTO lost VALUES (1)", "ALTER PUBLICATION q ADD TABLE lost")
    pipeline.settings["publication.name"] = "q"
    run(pipeline)
    gaps = GapCertificates(pipeline.offset_file.parent)
    (gap,) = gaps.open()
    assert "public.lost" in gap.tables
    assert ("public.old" in gap.tables) == (old.server.version >= 180000)
    old.execute("CREATE PUBLICATION r FOR TABLE lost, old; INSERT INTO lost VALUES (2)")
    pipeline.settings["publication.name"] = "r"
    run(pipeline)
    assert len(gaps.open()) == 1 + (old.server.version >= 180000)


def test_what_was_sent_less_during_the_first_snapshot_is_a_gap(old, pipeline):
    old.execute("CREATE TABLE lost (id int PRIMARY KEY); CREATE PUBLICATION p FOR TABLE old, lost")
    pipeline.settings |= BY_HAND
    held, release = pipeline.destination.hold()
    with pipeline.running(ready=False) as there:
        there.until(held.is_set, "the snapshot")
        old.run(TAKEN, "INSERT INTO lost VALUES (1)", PUT_BACK)
        release.set()
        there.until(lambda: there.engine.state == "streaming", "streaming")
    (gap,) = GapCertificates(pipeline.offset_file.parent).open()
    assert gap.tables == ("public.lost",)
