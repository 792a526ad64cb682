"""Doctor, and a start, tell of tables that would stand still at their first change."""

from pathlib import Path
from typing import Any

from tests.harness.changelog import relation
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database
from tests.harness.spark import Rig

from waltap.cli.connection import connected
from waltap.host import Host
from waltap.source.check_context import CheckContext

TABLES = """
CREATE TABLE keyed (id int PRIMARY KEY, v text);
CREATE TABLE keyless (a int);
CREATE TABLE made (id int PRIMARY KEY);
"""


def told(database: Database, folder: Path, **sink: object) -> list[str]:
    host = Host()
    settings = {f"sink.{name}": value for name, value in sink.items()}
    more = {"sink.type": "spark", "sink.path": str(folder / "lake"), **settings}
    profile = PipelineRig(database, folder).profile(host, **more)
    with connected(profile, host) as (connector, _stages):
        context = CheckContext(profile=profile, connector=connector, offset=None)
        found = host.checks["spark tables"].factory(context)
    assert {each.verdict for each in found} <= {"warning"}
    return sorted(each.found for each in found)


def test_tables_that_would_stand_still_are_told(
    database: Database, tmp_path: Path, spark: Any
) -> None:
    database.execute(TABLES)
    assert told(database, tmp_path) == []
    (keyless,) = told(database, tmp_path, **{"extra.columns": "_commit_ts"})
    assert "public.keyless cannot be scd1, with _commit_ts: it has no key" in keyless
    keyed, keyless = told(database, tmp_path, mode=r"public\.ke.*:scd2", history="none")
    assert "public.keyed cannot be scd2, without history: it keeps rows of the past" in keyed
    assert "public.keyless cannot be scd2" in keyless
    by = {"format": "delta", "format.partition.by": r"public\.keyed:regoin"}
    assert told(database, tmp_path, **by) == [
        "public.keyed is to be divided by regoin, which it does not have"
    ]
    rig = Rig(tmp_path, spark)
    rig.db.insert(relation("public.made", [("id", "int4")]), ["1"])
    rig.commit()
    rig.apply()
    rig.applier.close()
    rig.sink.close()
    (tmp_path / "lake").mkdir()
    (tmp_path / "out").rename(tmp_path / "lake" / "tables")
    assert told(database, tmp_path) == []
    assert told(database, tmp_path, mode=r"public\.made:scd2") == [
        "public.made was made as scd1, and is to be scd2"
    ]
