"""What stays of relations that are gone: nothing that grows with their number."""

import gc
from pathlib import Path

import pytest
from waltap.json.codec import RowCodec

from tests.rigs.pipeline import Pipeline
from tests.servers.postgres import Database

TABLES = 700
"""Tables that are made, filled and dropped; decoders ask what is gone at 256 relations."""


def alive() -> int:
    """Return how many compiled codecs there are in this process."""
    gc.collect()
    return sum(1 for thing in gc.get_objects() if type(thing) is RowCodec)


@pytest.mark.parametrize("name", ["m", "job_{}"], ids=["one name", "names of their own"])
@pytest.mark.parametrize("plugin", ["pgoutput", "wal2json", "decoderbufs"])
def test_tables_that_come_and_go_leave_nothing_behind(
    database: Database, tmp_path: Path, plugin: str, name: str
) -> None:
    database.execute("CREATE TABLE k (id int PRIMARY KEY)")
    out = tmp_path / "out"
    pipeline = Pipeline(
        database,
        tmp_path,
        {
            "plugin.name": plugin,
            "sink.type": "jsonl",
            "sink.path": str(out),
            "topic.prefix": "x",
            "publication.autocreate.mode": "all_tables" if plugin == "pgoutput" else None,
        },
    )
    before = alive()
    with pipeline.running() as run, database.connect(autocommit=True) as connection:
        for n in range(TABLES):
            table = name.format(n)
            connection.execute(
                f"BEGIN; CREATE TABLE {table} (id int PRIMARY KEY, n{n} text NOT NULL);"
                f" INSERT INTO {table} VALUES (1, 'a'); COMMIT; DROP TABLE {table}".encode()
            )
        for n in range(3):  # the server reads on, so that what was dropped lies behind
            database.execute("INSERT INTO k VALUES (%s)", n)
            run.until(lambda n=n: out.read_text().count('"table":"k"') > n, "the row")
        assert alive() - before < 300
    assert out.read_text().count('"n') >= TABLES
