"""The example decoder in the real engine, beside pgoutput on the same database: equal events."""

from pathlib import Path

import msgspec
import pytest
from tests.harness.pipeline import PipelineRig

SOURCE = Path(__file__).parents[2] / "examples" / "plugins" / "waltap-testdecoding" / "src"
SETUP = """
CREATE TABLE t (id int PRIMARY KEY, a text, n numeric(10,2), big text);
ALTER TABLE t ALTER big SET STORAGE EXTERNAL;
CREATE TABLE gone (id int PRIMARY KEY);
CREATE TABLE f (id int PRIMARY KEY, a text, b bool, at timestamptz);
ALTER TABLE f REPLICA IDENTITY FULL;
INSERT INTO t VALUES (1, 'snapshot', 1.5, NULL);
INSERT INTO f VALUES (1, 'snapshot', true, '2024-02-29 12:00:00+00');
"""
CHANGES = """
INSERT INTO t VALUES (2, 'it''s "x" \\ back', 2, repeat('x', 2100)), (3, E'line\\nbreak', NULL, '');
UPDATE t SET a = 'b' WHERE id = 2;
UPDATE t SET id = 20 WHERE id = 2;
DELETE FROM t WHERE id = 20;
UPDATE f SET a = NULL, b = false WHERE id = 1;
INSERT INTO f VALUES (2, 'null', NULL, 'infinity');
DELETE FROM f WHERE id = 1;
BEGIN; INSERT INTO t VALUES (4, 'lost', 4, NULL); ROLLBACK;
INSERT INTO f VALUES (4, 'before the ALTER', true, NULL);
"""
# The decoder reads columns from the catalogue: it must have read the changes before the ALTER.
WIDER = """
ALTER TABLE t ADD extra int DEFAULT 7;
INSERT INTO t VALUES (5, 'wider', 5, NULL, 8);
INSERT INTO gone VALUES (1), (2);
DELETE FROM gone;
DROP TABLE gone;
TRUNCATE f;
INSERT INTO f VALUES (3, 'last', true, NULL);
"""


@pytest.fixture
def plugin(monkeypatch):
    monkeypatch.syspath_prepend(SOURCE)
    import waltap_testdecoding.plugin

    return waltap_testdecoding.plugin


def plain(events):
    """Return events without what two plugins may show differently: commit LSNs and orders of them."""
    return [msgspec.structs.replace(event, xid=None, commit_lsn=0) for event in events]


def await_row(pipelines: list[PipelineRig], plugin: object, number: int) -> None:
    for pipeline, plugins in zip(pipelines, ((), (plugin,)), strict=True):
        with pipeline.running(*plugins) as run:
            run.until(lambda p=pipeline: number in p.destination.ids("f", "c"), f"row {number}")


def test_the_example_decoder_shows_what_pgoutput_shows(database, tmp_path, plugin):
    database.execute(SETUP)
    pipelines = [
        PipelineRig(
            database, tmp_path / name, {"slot.name": f"{database.name[:40]}_{name}", **more}
        )
        for name, more in (("pg", {}), ("td", {"plugin.name": "test_decoding"}))
    ]
    with pipelines[0].running(), pipelines[1].running(plugin):
        database.run(*CHANGES.split(";\n"))
    await_row(pipelines, plugin, 4)
    database.run(*WIDER.split(";\n"))
    await_row(pipelines, plugin, 3)
    pgoutput, example = (pipeline.destination for pipeline in pipelines)
    for table in ("t", "f"):
        assert plain(example.of(table)) == plain(pgoutput.of(table))
    assert pgoutput.table("t").keys() == {("1",), ("3",), ("5",)}
