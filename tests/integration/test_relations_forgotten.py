"""What stays of relations that are gone: nothing that grows with their number."""

import gc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.harness.pipeline import PipelineRig, Run
from tests.harness.servers.postgres import Database

UNASKED = 8
"""So few relations are kept without asking, where it is counted what consumers keep."""

NAMING = ("wal2json", "decoderbufs")
"""Decoders that know tables by their names."""

SINKS = ("jsonl", "changelog", "files", "sql")
"""Sinks of one pipeline, so that one run asks all of them."""

CONVERTERS = dict.fromkeys(
    ("key.converter", "value.converter"), "org.apache.kafka.connect.json.JsonConverter"
)


def branches(folder: Path, *kinds: str) -> list[dict[str, Any]]:
    """Return sinks of these types that write into ``folder``."""
    more = {
        "files": {"file.format": "parquet", "file.max.age.ms": "0"},
        "sql": {"url": f"sqlite:///{folder / 'sql'}"},
    }
    return [
        {"name": kind, "type": kind, **more.get(kind, {})}
        | ({} if kind == "sql" else {"path": str(folder / kind)})
        for kind in kinds
    ]


def kinds() -> Counter[str]:
    gc.collect()
    types = map(type, gc.get_objects())
    return Counter(each.__qualname__ for each in types if str(each.__module__).startswith("waltap"))


class Recreations:
    """A pipeline, and a table that is made, filled and dropped again and again."""

    def __init__(
        self, database: Database, folder: Path, plugin: str, *sinks: str, **settings: Any
    ) -> None:
        database.execute("CREATE TABLE k (id int PRIMARY KEY)")
        given = {
            "topic.prefix": "x",
            "plugin.name": plugin,
            "publication.autocreate.mode": None if plugin in NAMING else "all_tables",
        }
        self._database = database
        self.pipeline = PipelineRig(database, folder, given | settings)
        self.pipeline.branches = branches(folder, *sinks)
        self._read = self._made = 0
        self._name = "job_{}" if plugin == "wal2json" else "m"

    def make(self, run: Run, count: int) -> None:
        """Make the table ``count`` times; return when all of it was read, and is known to be gone."""
        with self._database.connect(autocommit=True) as connection:
            for n in range(count):
                self._made += 1
                m = self._name.format(self._made)
                connection.execute(
                    f"BEGIN; CREATE TABLE {m} (id int PRIMARY KEY, n{n % 7} text);"
                    f" INSERT INTO {m} VALUES ({self._made}, 'a'); COMMIT; DROP TABLE {m}".encode()
                )
            for _ in range(6):  # the answer to a question holds for what commits behind it
                self._read += 1
                asked = connection.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
                before = int(asked[0])
                connection.execute(b"INSERT INTO k VALUES (%d)" % self._read)
                run.until(lambda before=before: self._reached() > before, "the row")

    def _reached(self) -> int:
        offset = self.pipeline.offset()
        return 0 if offset is None else offset.sole.position.end_lsn


@pytest.mark.parametrize(
    ("plugin", "sinks", "settings"),
    [
        pytest.param("pgoutput", SINKS, {}, id="sinks"),
        pytest.param("pgoutput", SINKS[:1], CONVERTERS, id="converters"),
        pytest.param("wal2json", SINKS[:1], {}, id="names that differ"),
        pytest.param("decoderbufs", SINKS[:1], {}, id="decoderbufs", marks=pytest.mark.exhaustive),
    ],
)
def test_no_consumer_keeps_anything_of_a_table_that_is_gone(
    database, tmp_path, monkeypatch, plugin, sinks, settings
):
    monkeypatch.setattr("waltap_decoders.retirement.SMALLEST", UNASKED)
    monkeypatch.setattr("waltap.pipeline.stages.relations.MAX_LAST_SEEN", UNASKED)
    monkeypatch.setattr("waltap.changes.mapping.type_registry._CACHE_LIMIT", UNASKED)
    tables = Recreations(database, tmp_path, plugin, *sinks, **settings)
    with tables.pipeline.running() as run:
        tables.make(run, 100)
        grown, own = set(kinds()), {"KnownTable", "TargetName"}  # the SQL target's table of tables
        # Descriptions are dropped now and then; what is kept grows in each round.
        for _ in range(3):
            before = kinds()
            tables.make(run, 100)
            grown &= {kind for kind, count in (kinds() - before).items() if count > 60}
            if grown <= own:
                break
    assert grown <= own
