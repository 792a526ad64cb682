"""``waltap tables`` and ``waltap snapshot``: what is streamed is changed while the pipeline runs, or rests."""

import json
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.harness import command
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database


pytestmark = pytest.mark.pipeline(
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


def waltap(pipeline: PipelineRig, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the profile of the pipeline."""
    settings = pipeline.settings | {"waltap.state.dir": "state"}
    lines = [f"{json.dumps(name)} = {json.dumps(value)}" for name, value in settings.items()]
    profile = 'name = "p"\n[source]\n' + "\n".join(lines) + "\n"
    (pipeline.folder / "p.toml").write_text(profile)
    name, *rest = arguments
    verbs = [rest.pop(0)] if name == "tables" else []
    return command.waltap(name, *verbs, "p.toml", *rest, cwd=pipeline.folder, wait=180)


def test_a_table_joins_a_running_pipeline_with_its_rows(pipeline: PipelineRig) -> None:
    """An open transaction has written to it: the command waits for that, and nothing is missing."""
    database = pipeline.database
    with pipeline.running() as run:
        database.execute(
            'CREATE TABLE "New.One" (id int PRIMARY KEY);'
            'INSERT INTO "New.One" SELECT generate_series(1, 25)'
        )
        with database.connect(autocommit=False) as writer:
            writer.execute('INSERT INTO "New.One" VALUES (26)')
            done: list[subprocess.CompletedProcess[str]] = []
            adding = threading.Thread(
                target=lambda: done.append(waltap(pipeline, "tables", "add", 'public."New.One"'))
            )
            adding.start()
            run.until(
                lambda: (
                    done
                    or database.execute(
                        "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = l.relation"
                        " WHERE NOT granted AND relname = 'New.One'"
                    )[0][0]
                ),
                "the command to wait",
                within=120,
            )
            assert not done, done[0].stderr
            writer.commit()
        adding.join(180)
        assert done[0].returncode == 0, done[0].stderr
        assert "p: public.New.One is streamed from now on" in done[0].stdout
        run.until(
            lambda: set(pipeline.destination.ids("public.New.One")) >= set(range(1, 27)), "the rows"
        )
        database.execute('INSERT INTO "New.One" VALUES (100)')
        run.until(lambda: pipeline.destination.ids("public.New.One", "c") == [100], "the stream")
        again = waltap(pipeline, "tables", "add", "--no-snapshot", 'public."New.One"')
        assert again.stdout == "p: public.New.One is streamed already\n"
    assert sorted(pipeline.destination.ids("public.New.One", "r")) == list(range(1, 27))


def test_a_table_joins_a_pipeline_at_rest_and_is_read_at_its_next_start(
    pipeline: PipelineRig,
) -> None:
    database = pipeline.database
    pipeline.catch_up()
    database.execute("CREATE TABLE n (id int PRIMARY KEY); INSERT INTO n VALUES (1), (2)")
    done = waltap(pipeline, "tables", "add", "public.n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "p: public.n is streamed from now on",
        "p: the pipeline does not run; its next start reads the rows",
    ]
    with pipeline.running() as run:
        run.until(lambda: sorted(pipeline.destination.ids("n", "r")) == [1, 2], "the rows")


def test_a_table_leaves(pipeline: PipelineRig) -> None:
    database = pipeline.database
    database.execute("CREATE TABLE n (id int PRIMARY KEY)")
    with pipeline.running() as run:
        done = waltap(pipeline, "tables", "remove", "public.n")
        assert done.returncode == 0, done.stderr
        assert "p: public.n is no longer streamed" in done.stdout
        assert r"table.exclude.list should name public\.n" in done.stdout
        database.execute("INSERT INTO n VALUES (1); INSERT INTO t VALUES (100)")
        run.until(lambda: 100 in pipeline.destination.ids("t"), "the stream")
    assert pipeline.destination.ids("n") == []


def test_names_that_are_no_captured_tables_change_nothing(pipeline: PipelineRig) -> None:
    database = pipeline.database
    pipeline.catch_up()
    database.execute("CREATE TABLE hidden (id int PRIMARY KEY)")
    done = waltap(pipeline, "tables", "add", "public.hidden", "public.none", "none")
    assert done.returncode == 2
    assert "is no name of a table" in done.stderr
    done = waltap(pipeline, "tables", "add", "public.hidden", "public.none")
    assert done.returncode == 2
    assert "is not captured" in done.stderr
    assert "there is no such table" in done.stderr
    tables = database.execute("SELECT tablename FROM pg_publication_tables")
    assert tables == [("t",)]


def test_a_running_pipeline_reads_tables_again(pipeline: PipelineRig) -> None:
    with pipeline.running() as run:
        done = waltap(
            pipeline, "snapshot", "public.t", "--filter", "id > 20", "--id", "a", "--wait", "120"
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout == "p: signal a (execute-snapshot) is acted on\n"
        run.until(
            lambda: sorted(pipeline.destination.ids("t", "r")) == list(range(21, 26)), "the rows"
        )
        statement = "SELECT * FROM public.t WHERE id < 3"
        done = waltap(pipeline, "snapshot", "public.t", "--blocking", "--filter", statement)
        assert done.returncode == 0, done.stderr
        run.until(lambda: pipeline.destination.ids("t", "r")[5:] == [1, 2], "the other rows")
    left = waltap(pipeline, "snapshot", "public.t")
    assert left.returncode == 1
    assert "WT-6201" in left.stderr
