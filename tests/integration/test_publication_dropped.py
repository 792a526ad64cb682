"""A publication dropped under a slot: the way out that the error names works, and loses no row's state."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from waltap_postgres.errors import PublicationGone

from tests.harness.command import waltap
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database


pytestmark = pytest.mark.pipeline(
    sql="CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)"
)


def command(pipeline: PipelineRig, *words: str) -> None:
    chosen = {**pipeline.settings, "waltap.state.dir": str(pipeline.folder / "state")}
    text = "\n".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in chosen.items() if k != "type")
    profile = f'[source]\ntype = "postgres"\n{text}\n[sink]\ntype = "null"\n'
    (pipeline.folder / "p.toml").write_text(profile)
    done = waltap(*words, "p.toml", "--yes", cwd=pipeline.folder)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("way", ["clear", "when_needed after the drop"])
def test_a_publication_dropped_under_a_slot(pipeline: PipelineRig, way: str) -> None:
    database = pipeline.database
    pipeline.catch_up()
    database.execute(f"DROP PUBLICATION {pipeline.slot}")
    database.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(PublicationGone):
        pipeline.catch_up()
    database.execute(f"CREATE PUBLICATION {pipeline.slot} FOR ALL TABLES")  # which does not help
    for _ in range(2):
        with pytest.raises(PublicationGone, match=r"slot drop FILE.*offsets clear FILE.*Lost are"):
            pipeline.catch_up()
    command(pipeline, "slot", "drop")
    if way == "clear":
        command(pipeline, "offsets", "clear")
        pipeline.catch_up()
    else:
        pipeline.catch_up(**{"snapshot.mode": "when_needed"})
    database.execute("INSERT INTO t VALUES (3)")
    pipeline.catch_up()
    assert pipeline.destination.ids("t", "r") == [1, 1, 2]
    assert pipeline.destination.ids("t", "c") == [3]


def test_a_profile_that_names_another_publication_is_told_to_name_it_again(
    pipeline: PipelineRig,
) -> None:
    database = pipeline.database
    pipeline.catch_up()
    database.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(PublicationGone, match=r"from while there was none.*publication\.name"):
        pipeline.catch_up(**{"publication.name": f"{pipeline.slot}_2"})
    pipeline.catch_up()
    assert pipeline.destination.ids("t", "c") == [2]


@pytest.mark.parametrize("libpq", [{}, {"driver.gssencmode": "prefer"}], ids=["socket", "libpq"])
@pytest.mark.parametrize("when", ["down", "streaming"])
def test_when_needed_starts_over_by_itself(
    pipeline: PipelineRig, caplog: pytest.LogCaptureFixture, when: str, libpq: dict[str, str]
) -> None:
    database = pipeline.database
    pipeline.settings |= {"snapshot.mode": "when_needed", **libpq}
    change = (
        f"DROP PUBLICATION {pipeline.slot}; INSERT INTO t VALUES (2); DELETE FROM t WHERE id = 1"
    )
    pipeline.catch_up()
    if when == "down":
        database.execute(change)
    with pipeline.running() as run:
        if when == "streaming":
            database.execute(change)
        run.until(lambda: pipeline.destination.ids("t", "r") == [1, 2], "the new snapshot")
        run.until(lambda: run.engine.state == "streaming", "streaming")
        database.execute("INSERT INTO t VALUES (3)")
        run.until(lambda: pipeline.destination.ids("t", "c") == [3], "the change after it")
        failures = [(e.code, retried) for e, retried in run.notices.failures]
        assert failures == ([("WT-2117", True)] if when == "streaming" else [])
    assert "Lost are the single changes since" in caplog.text
    pipeline.catch_up()  # once is enough
    assert pipeline.destination.ids("t") == [1, 2, 3]


def test_without_a_reconnect_the_next_start_does_it(pipeline: PipelineRig) -> None:
    database = pipeline.database
    pipeline.settings |= {"snapshot.mode": "when_needed", "errors.max.retries": 0}

    def drop_while_it_streams() -> None:
        with pipeline.running() as run:
            database.execute(f"DROP PUBLICATION {pipeline.slot}; INSERT INTO t VALUES (2)")
            run.join()

    with pytest.raises(PublicationGone, match=r"snapshot\.mode=when_needed"):
        drop_while_it_streams()
    pipeline.catch_up()
    assert pipeline.destination.ids("t", "r") == [1, 1, 2]


def slot_there(database: Database, name: str) -> None:
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", name)


@pytest.mark.parametrize("mode", ["disabled", "filtered", "all_tables"])
@pytest.mark.parametrize("remade", [False, True])
def test_an_adopted_slot_that_cannot_be_read_is_refused_before_a_snapshot(
    pipeline: PipelineRig, mode: str, remade: bool
) -> None:
    """As a connector of Debezium leaves it: the slot, no offset of ours, and the publication gone."""
    database = pipeline.database
    publication = f"CREATE PUBLICATION {pipeline.slot} FOR TABLE t"
    database.execute(publication)
    slot_there(database, pipeline.slot)
    database.execute(f"DROP PUBLICATION {pipeline.slot}")
    database.execute("INSERT INTO t VALUES (2)")
    if remade:
        database.execute(publication)
    pipeline.settings |= {"slot.adopt": True, "publication.autocreate.mode": mode}
    for _ in range(2):
        with pytest.raises(PublicationGone, match=r"slot drop FILE"):
            pipeline.catch_up()
    assert pipeline.destination.events == []
    found = database.execute(
        "SELECT count(*) FROM pg_publication WHERE pubname = %s", pipeline.slot
    )
    assert found == [(int(remade),)]
    command(pipeline, "slot", "drop")
    if mode == "disabled" and not remade:
        database.execute(publication)
    pipeline.catch_up()
    database.execute("INSERT INTO t VALUES (3)")
    pipeline.catch_up()
    assert pipeline.destination.ids("t") == [1, 2, 3]


def test_an_adopted_slot_without_changes_needs_no_older_publication(pipeline: PipelineRig) -> None:
    database = pipeline.database
    slot_there(database, pipeline.slot)
    pipeline.settings["slot.adopt"] = True
    pipeline.catch_up()
    database.execute("INSERT INTO t VALUES (2)")
    pipeline.catch_up()
    assert pipeline.destination.ids("t") == [1, 2]


def test_adoption_with_when_needed_takes_one_snapshot(pipeline: PipelineRig) -> None:
    database = pipeline.database
    slot_there(database, pipeline.slot)
    database.execute("INSERT INTO t VALUES (2)")
    pipeline.settings |= {"slot.adopt": True, "snapshot.mode": "when_needed"}
    pipeline.catch_up()
    database.execute("INSERT INTO t VALUES (3)")
    pipeline.catch_up()
    assert pipeline.destination.ids("t") == [1, 2, 3]
