"""Remedies that take several steps, carried out as they are printed: what a publication or a destination lacked
for a while, and a table that somebody writes to."""

from functools import partial

import pytest
from tests.harness import command
from tests.harness.pipeline import QUICK, WAIT_S, PipelineRig
from tests.harness.servers.postgres import queries
from tests.harness.sql import pipeline as to_replica

from waltap.pipeline.stages.new_tables import TablesNotStreamed
from waltap.ports.offsets.gaps import GapCertificates

COPY = "SELECT pg_copy_logical_replication_slot(%s, %s)"


@pytest.fixture
def pipeline(database, tmp_path) -> PipelineRig:
    database.execute("CREATE SCHEMA replica; CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("INSERT INTO t VALUES (1), (2)")
    return to_replica(database, tmp_path)


def done(pipeline: PipelineRig, *words: str) -> str:
    found = pipeline.command(*words)
    assert found.returncode == 0, found.stderr
    return found.stderr


def test_rows_that_a_change_log_has_too_many_of_are_named_and_replaced_by_a_snapshot(pipeline):
    """On a quiet source the log gets no manifest that a comparison could wait for."""
    database = pipeline.database
    pipeline.settings |= {
        "sink.type": "changelog",
        "sink.path": str(pipeline.folder / "log"),
        **QUICK,
    }
    for name in ("sink.url", "sink.table.name.format", "sink.position.table"):
        del pipeline.settings[name]
    pipeline.catch_up()
    database.execute("DELETE FROM t WHERE id > 1")
    ((skipped,),) = database.execute("SELECT pg_current_wal_insert_lsn()::text")
    done(pipeline, "offsets", "set", "FILE", skipped, "--yes")
    running = command.start("run", pipeline.file(), cwd=pipeline.folder)
    compared = pipeline.command("verify", "FILE", "--patience", "8")
    running.terminate()
    running.wait(WAIT_S)
    assert compared.returncode == 1, compared.stdout
    assert "only in the destination: (id=2)" in compared.stdout
    done(pipeline, "run", "FILE", "--until-idle", "0.3", "--set", "snapshot.mode=always")
    assert pipeline.command("verify", "FILE", "--patience", "0").returncode == 0


def test_a_table_that_a_publication_lacked_for_a_while_is_added_and_repaired(pipeline):
    database = pipeline.database
    database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    database.execute("CREATE PUBLICATION mine FOR TABLE t, other")
    pipeline.settings |= {
        "publication.name": "mine",
        "publication.autocreate.mode": "disabled",
    }
    pipeline.catch_up()
    database.execute("ALTER PUBLICATION mine DROP TABLE t; INSERT INTO t VALUES (7)")
    pipeline.catch_up()
    (reported,) = pipeline.folder.rglob("gaps/*.txt")
    assert "WT-2048" in reported.read_text()
    (query,) = queries(TablesNotStreamed.remedy)
    assert ("mine", "public", "t") not in {row[:3] for row in database.execute(query)}
    database.execute("ALTER PUBLICATION mine ADD TABLE t")
    done(pipeline, "repair", "FILE")
    assert database.execute("SELECT 1 FROM replica.t WHERE id = 7")
    pipeline.catch_up()
    assert not GapCertificates(reported.parent.parent).open()


def test_changes_are_streamed_again_where_the_slot_was_restored_with_the_destination(pipeline):
    database, slot, then = pipeline.database, pipeline.slot, f"{pipeline.slot[:50]}_then"
    pipeline.catch_up()
    database.execute(COPY, slot, then)
    database.execute("INSERT INTO t VALUES (98)")
    pipeline.catch_up()
    database.execute("CREATE TABLE replica.then AS SELECT * FROM replica.waltap_position")
    database.execute("INSERT INTO t VALUES (99)")
    pipeline.catch_up()
    database.execute(
        "DELETE FROM replica.t WHERE id = 99; TRUNCATE replica.waltap_position;"
        "INSERT INTO replica.waltap_position SELECT * FROM replica.then"
    )
    database.execute("SELECT pg_drop_replication_slot(%s)", slot)
    database.execute(COPY, then, slot)
    database.execute("SELECT pg_drop_replication_slot(%s)", then)
    refused = pipeline.command("run", "FILE", "--until-idle", "0.3")
    assert refused.returncode != 0
    words = " ".join(refused.stderr.replace("│", " ").split())
    assert "WT-5003" in words
    lsn = words.partition("`waltap offsets set FILE ")[2].partition("`")[0]
    done(pipeline, "offsets", "set", "FILE", lsn, "--yes")
    pipeline.catch_up()
    assert database.execute("SELECT 1 FROM replica.t WHERE id = 99")


def test_a_writer_keeps_a_table_from_being_added_and_is_named(pipeline):
    pipeline.settings["snapshot.lock.timeout.ms"] = 100
    pipeline.catch_up()
    pipeline.database.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
    pipeline.database.execute("CREATE TABLE other (id int PRIMARY KEY)")
    add = "tables", "add", "FILE", "public.fresh"
    connect = partial(pipeline.database.connect, autocommit=False)
    with connect() as writer, connect() as bystander:
        writer.execute("INSERT INTO fresh VALUES (1)")
        bystander.execute("INSERT INTO other VALUES (1)")
        refused = pipeline.command(*add)
        assert refused.returncode != 0
        words = " ".join(refused.stderr.replace("│", " ").split())
        assert "WT-2024" in words
        (query,) = queries(words)
        assert [pid for pid, _ in pipeline.database.execute(query)] == [writer.info.backend_pid]
        writer.commit()
    done(pipeline, *add)
