"""A destination that lost what it had: the run ends and says so, and a repair brings it back."""

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from waltap.errors import SinkError
from waltap.offsets.gaps import GapCertificates
from waltap.pipeline.repair import GapRepair
from waltap.sink.held import DestinationBehind
from waltap_sinks.sql.errors import SqlTableGone

from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database
from tests.harness.sql import Place


class Target:
    """A SQLite file as target, with a copy of its earlier state."""

    def __init__(self, folder: Path) -> None:
        self.path, self.copy = folder / "target.db", folder / "copy.db"

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        connection = sqlite3.connect(self.path)
        try:
            rows = connection.execute(statement).fetchall()
            connection.commit()
        finally:
            connection.close()
        return rows

    def keep(self) -> None:
        self.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(self.path, self.copy)

    def restore(self) -> None:
        self.remove()
        shutil.copy(self.copy, self.path)

    def remove(self) -> None:
        for path in self.path.parent.glob("target.db*"):
            path.unlink()


@pytest.fixture
def target(tmp_path: Path) -> Target:
    return Target(tmp_path)


@pytest.fixture
def pipeline(database: Database, tmp_path: Path, target: Target) -> PipelineRig:
    """Return one whose target has ten rows and a copy of when it had five."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'a' FROM generate_series(1, 4) i"
    )
    url = f"sqlite:///{target.path}"
    made = PipelineRig(database, tmp_path, {"sink.type": "sql", "sink.url": url})
    made.catch_up()
    database.execute("INSERT INTO t VALUES (5, 'b')")
    made.catch_up()
    target.keep()
    database.execute("INSERT INTO t SELECT i, 'c' FROM generate_series(6, 10) i")
    made.catch_up()
    assert target.execute("SELECT count(*) FROM t") == [(10,)]
    return made


LOSSES: dict[str, tuple[Callable[[Target], object], type[SinkError]]] = {
    "restored": (Target.restore, DestinationBehind),
    "made anew": (Target.remove, DestinationBehind),
    "without its position": (
        lambda target: target.execute("DELETE FROM waltap_position"),
        DestinationBehind,
    ),
    "without a table": (lambda target: target.execute("DROP TABLE t"), SqlTableGone),
    "without a column": (
        lambda target: target.execute("ALTER TABLE t DROP COLUMN v"),
        SqlTableGone,
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_was_lost_is_noticed_and_repaired(
    pipeline: PipelineRig, target: Target, loss: str
) -> None:
    lose, kind = LOSSES[loss]
    lose(target)
    database = pipeline.database
    database.execute("INSERT INTO t VALUES (11, 'd')")
    for _ in range(2):  # the next start has not forgotten it
        with pytest.raises(kind):
            pipeline.catch_up()
    (gap,) = GapCertificates(pipeline.offset_file.parent).open()
    assert (gap.code, gap.tables) == (kind.code, ("public.t",))
    host, _ = pipeline.host()
    reread = GapRepair(pipeline.profile(host), host).run(lambda: 0)
    assert reread["public.t"].rows == 11 or reread["public.t"].compared
    assert target.execute("SELECT id, v FROM t ORDER BY id") == [
        (row[0], row[1]) for row in database.execute("SELECT id, v FROM t ORDER BY id")
    ]
    database.execute("INSERT INTO t VALUES (12, 'e')")
    pipeline.catch_up()
    assert target.execute("SELECT count(*) FROM t") == [(12,)]


@pytest.mark.parametrize(
    ("place", "lanes"),
    [("file", 1), ("maria", 1), ("maria", 3), ("postgres", 1), ("postgres", 3)],
    indirect=["place"],
)
def test_a_target_restored_under_a_running_engine_is_noticed(
    place: Place, database: Database, tmp_path: Path, lanes: int
) -> None:
    """The backup is of this very run, and no connection breaks: rows and position are put back."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')")
    settings = {
        "sink.type": "sql",
        "sink.url": place.url,
        "sink.apply.connections": lanes,
        "sink.table.name.format": "{table}_copy",
        "table.include.list": "public.t",
    }
    pipeline = PipelineRig(database, tmp_path, settings)

    def has(*numbers: int) -> bool:
        return place.rows("t_copy", "id") == [(str(n),) for n in numbers]

    with pytest.raises(DestinationBehind), pipeline.running() as run:
        run.until(lambda: place.execute("SELECT 1 FROM waltap_position"), "the snapshot")
        database.execute("INSERT INTO t VALUES (2, 'b')")
        run.until(lambda: has(1, 2), "the second row")
        for table in ("t_copy", "waltap_position"):
            place.execute(f"CREATE TABLE kept_{table} AS SELECT * FROM {table}")
        database.execute("INSERT INTO t VALUES (3, 'c')")
        run.until(lambda: has(1, 2, 3), "the third row")
        for table in ("t_copy", "waltap_position"):
            place.execute(f"DELETE FROM {table}")
            place.execute(f"INSERT INTO {table} SELECT * FROM kept_{table}")
        for number in range(4, 204):
            database.execute("INSERT INTO t VALUES (%s)", number)
        run.until(lambda: run.error is not None, "the end of the run", 30)
    assert has(1, 2)
    (gap,) = GapCertificates(pipeline.offset_file.parent).open()
    assert (gap.code, gap.tables) == (DestinationBehind.code, ("public.t",))


FOLDERS: dict[str, tuple[dict[str, str], tuple[str, str]]] = {
    "files": ({"sink.type": "files", "sink.path": "{}/out"}, ("WT-5127", "WT-5127")),
    "changelog": ({"sink.type": "changelog", "sink.path": "{}/out"}, ("WT-5109", "WT-5107")),
    "delta": ({"sink.type": "delta", "sink.path": "{}/out"}, ("WT-5003", "WT-5003")),
    "duckdb": ({"sink.type": "sql", "sink.url": "duckdb:///{}/out/x.db"}, ("WT-5003", "WT-5003")),
}


@pytest.mark.parametrize("emptied", [False, True], ids=["older", "emptied"])
@pytest.mark.parametrize("kind", FOLDERS)
def test_an_older_or_emptied_folder_ends_the_run(
    database: Database, tmp_path: Path, kind: str, *, emptied: bool
) -> None:
    settings, codes = FOLDERS[kind]
    out, copy = tmp_path / "out", tmp_path / "copy"
    out.mkdir()
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    pipeline = PipelineRig(
        database, tmp_path, {name: value.format(tmp_path) for name, value in settings.items()}
    )
    pipeline.catch_up()
    shutil.copytree(out, copy)
    database.execute("INSERT INTO t VALUES (2)")
    pipeline.catch_up()
    shutil.rmtree(out)
    if emptied:
        out.mkdir()
    else:
        shutil.copytree(copy, out)
    database.execute("INSERT INTO t VALUES (3)")
    for _ in range(2):  # the next start has not forgotten it
        with pytest.raises(SinkError) as lost:
            pipeline.catch_up()
        assert lost.value.code == codes[emptied]
