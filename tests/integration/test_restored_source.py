"""A source that was restored from a copy: no way out is advised that does not lead out."""

import json
import shutil
from pathlib import Path

import pytest
from waltap.pipeline.repair import Repair
from waltap_postgres.errors import PositionAhead, PublicationDropped

from tests.harness.command import waltap
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Cluster, Database


def repaired(pipeline: PipelineRig) -> set[str]:
    host, _ = pipeline.host()
    return set(Repair(pipeline.profile(host), host).run(lambda: 1_700_000_000_000))


def test_a_server_restored_from_a_base_backup(private_server: Cluster, tmp_path: Path) -> None:
    database = private_server.create_database("shop")
    database.psql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    pipeline = PipelineRig(database, tmp_path)
    pipeline.catch_up()
    data, copy = private_server.folder / "data", private_server.folder / "copy"
    private_server.stop()
    shutil.copytree(data, copy)
    private_server.start()
    database.execute("INSERT INTO t SELECT generate_series(2, 20000)")
    pipeline.catch_up()
    private_server.stop()
    for each in data.iterdir():
        shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
    owner = data.stat()
    for each in copy.iterdir():
        each.rename(data / each.name)
    for each in (data / "pg_replslot").iterdir():  # a base backup has no slots
        shutil.rmtree(each)
    for each in data.rglob("*"):
        shutil.chown(each, owner.st_uid, owner.st_gid)
    private_server.start()
    with pytest.raises(PositionAhead, match=r"run FILE --set snapshot\.mode=when_needed"):
        pipeline.run()
    with pytest.raises(PositionAhead, match=r"waltap repair FILE` cannot"):
        repaired(pipeline)
    chosen = {**pipeline.settings, "waltap.state.dir": str(tmp_path / "state")}
    text = "\n".join(f"{json.dumps(k)} = {json.dumps(v)}" for k, v in chosen.items() if k != "type")
    (tmp_path / "p.toml").write_text(
        f'name = "p"\n[source]\ntype = "postgres"\n{text}\n[sink]\ntype = "null"\n'
    )
    found = json.loads(waltap("doctor", "p.toml", "--json", cwd=tmp_path).stdout)
    told = {each["name"]: each for each in found}
    assert told["start"]["code"] == "WT-6103"
    assert "repair FILE` reads" not in told["gaps"]["remedy"]
    pipeline.catch_up(**{"snapshot.mode": "when_needed"})
    database.execute("INSERT INTO t VALUES (30000)")
    pipeline.catch_up()
    assert pipeline.destination.ids("t")[-1] == 30000


def test_a_publication_that_was_dropped_is_a_gap_that_repair_closes(
    database: Database, tmp_path: Path
) -> None:
    database.psql("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    pipeline = PipelineRig(database, tmp_path)
    pipeline.catch_up()
    database.execute(f"DROP PUBLICATION {pipeline.slot}")
    database.execute("INSERT INTO t VALUES (2)")
    with pytest.raises(PublicationDropped, match="waltap repair FILE"):
        pipeline.catch_up()
    gaps = tmp_path / "state" / "p" / "gaps"
    assert any(gaps.iterdir())
    assert repaired(pipeline) == {"public.t"}
    database.execute("INSERT INTO t VALUES (3)")
    pipeline.catch_up()
    assert pipeline.destination.ids("t") == [1, 1, 2, 3]
