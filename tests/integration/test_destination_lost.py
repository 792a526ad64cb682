"""A destination that lost what it had: the run ends and says so, and a repair brings it back."""

import contextlib
import itertools
import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.lakes import Lake
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

from waltap.changes.transactions.position import parse_lsn
from waltap.errors import RetryVerdict, SinkError
from waltap.pipeline.api.repair import GapRepair
from waltap.ports.offsets.gaps import CaptureGap, GapCertificates
from waltap.ports.sink.stored_position import DestinationBehind
from waltap_lake.delta import DeltaLake
from waltap_lake.errors import LakeGone
from waltap_lake.iceberg import IcebergLake
from waltap_lake.lake import LakeOffset
from waltap_sinks.changelog import ChangeLog
from waltap_sinks.sql.errors import SqlTableGone

FOLDERS: dict[str, tuple[dict[str, str], tuple[str, str]]] = {
    "changelog": ({"sink.type": "changelog", "sink.path": "{}/out"}, ("WT-5109", "WT-5107")),
    "sqlite": ({"sink.type": "sql", "sink.url": "sqlite:///{}/out/x.db"}, ("WT-5003", "WT-5003")),
}
"""A sink that finds a loss itself, and one whose position the engine compares; that every sink notices one,
its suite sees (`waltap_testing.sink_losses`)."""


class Folder:
    """A destination that is a folder, whose state somebody keeps and puts back."""

    def __init__(self, kind: str, database: Database, folder: Path) -> None:
        settings, self.codes = FOLDERS[kind]
        self.kind, self.out, self.kept = kind, folder / "out", folder / "kept"
        self.out.mkdir()
        if kind == "sqlite":  # in other modes SQLite itself sees that its file was moved
            self.execute("PRAGMA journal_mode=WAL")
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a')"
        )
        given = {name: value.format(folder) for name, value in settings.items()}
        self.pipeline = PipelineRig(database, folder, given | {"table.include.list": "public.t"})

    def execute(self, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.out / "x.db")) as opened, opened:
            return opened.execute(statement).fetchall()

    def keep(self) -> None:
        shutil.rmtree(self.kept, ignore_errors=True)
        shutil.copytree(self.out, self.kept)

    def empty(self) -> None:
        for path in self.out.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def put_back(self) -> None:
        """Put back what was kept; the folder itself and files of the same name stay the same ones."""
        kept = {path.relative_to(self.kept) for path in self.kept.rglob("*")}
        for path in sorted(self.out.rglob("*"), reverse=True):
            if path.relative_to(self.out) not in kept:
                path.rmdir() if path.is_dir() else path.unlink()
        shutil.copytree(self.kept, self.out, dirs_exist_ok=True)

    def ids(self) -> list[int]:
        if self.kind == "sqlite":
            return [row[0] for row in self.execute("SELECT id FROM t WHERE v = 'a' ORDER BY id")]
        found = ChangeLog(str(self.out)).rows("public", "t")
        return sorted(number for part in found for number in part["id"].to_pylist())

    def insert(self, number: int) -> None:
        self.pipeline.database.execute("INSERT INTO t VALUES (%s, 'a')", number)

    def gaps(self) -> list[CaptureGap]:
        return GapCertificates(self.pipeline.offset_file.parent).all()


def repair(pipeline: PipelineRig) -> None:
    host, _ = pipeline.host()
    GapRepair(pipeline.profile(host), host, patience_s=1.0).run(lambda: 0)  # what was lost stays so


@pytest.fixture(params=FOLDERS)
def folder(request, database, tmp_path) -> Folder:
    """Return one with two rows, of a run each, of which the state with the first was kept."""
    made = Folder(request.param, database, tmp_path)
    made.pipeline.catch_up()
    made.keep()
    made.insert(2)
    made.pipeline.catch_up()
    return made


LOSSES: dict[str, tuple[str, str]] = {
    "without its position": ("DELETE FROM waltap_position", DestinationBehind.code),
    "without a table": ("DROP TABLE t", SqlTableGone.code),
    "without a column": ("ALTER TABLE t DROP COLUMN v", SqlTableGone.code),
}


@pytest.mark.parametrize(
    ("folder", "loss"),
    [*itertools.product(FOLDERS, ("older", "emptied")), *(("sqlite", loss) for loss in LOSSES)],
    indirect=["folder"],
)
def test_what_was_lost_ends_each_run_until_it_is_repaired(folder, loss):
    pipeline, emptied = folder.pipeline, loss == "emptied"
    code = folder.codes[emptied]
    if loss in LOSSES:
        statement, code = LOSSES[loss]
        folder.execute(statement)
    else:
        folder.empty() if emptied else folder.put_back()
    folder.insert(3)
    for _ in range(2):  # the next start has not forgotten it
        with pytest.raises(SinkError) as lost:
            pipeline.catch_up()
        assert lost.value.code == code
        assert "waltap repair FILE" in lost.value.advice()
    (gap,) = folder.gaps()
    assert (gap.code, gap.tables, gap.open) == (code, ("public.t",), True)
    if loss not in LOSSES:
        assert (gap.begin.lsn == "0/0") is emptied
    repair(pipeline)
    (gap,) = folder.gaps()
    assert (gap.open, gap.by) == (False, "repair")
    assert set(folder.ids()) == {1, 2, 3}
    folder.insert(4)
    pipeline.catch_up()
    assert set(folder.ids()) == {1, 2, 3, 4}


def test_a_folder_that_is_brought_back_has_no_gap(folder):
    pipeline, older = folder.pipeline, folder.kept.with_name("older")
    folder.kept.rename(older)
    folder.keep()
    newer = folder.kept.rename(folder.kept.with_name("newer"))
    older.rename(folder.kept)
    folder.put_back()
    folder.insert(3)
    with pytest.raises(SinkError):
        pipeline.catch_up()
    (gap,) = folder.gaps()
    assert gap.open
    shutil.rmtree(folder.kept)
    newer.rename(folder.kept)
    folder.put_back()
    pipeline.catch_up()
    (gap,) = folder.gaps()
    assert (gap.open, gap.by) == (False, "destination")
    assert folder.ids() == [1, 2, 3]


def test_a_new_snapshot_closes_the_gap_of_a_folder(folder):
    """The remedy that begins anew; the certificate stays, and says how that was made good."""
    pipeline = folder.pipeline
    folder.put_back()
    with pytest.raises(SinkError):
        pipeline.catch_up()
    pipeline.offset_file.unlink()
    pipeline.catch_up()
    (gap,) = folder.gaps()
    assert (gap.open, gap.by) == (False, "snapshot")
    assert set(folder.ids()) == {1, 2}


@pytest.mark.parametrize(
    ("folder", "way"), [("changelog", "in place"), ("sqlite", "emptied")], indirect=["folder"]
)
def test_an_older_folder_under_a_running_engine_ends_the_run(folder, way):
    """The sink suite tries the other ways."""
    pipeline = folder.pipeline
    with pytest.raises(SinkError), pipeline.running() as run:
        folder.insert(3)
        ((lsn,),) = pipeline.database.execute("SELECT pg_current_wal_lsn()::text")

        def durable() -> bool:
            offset = pipeline.offset()
            return offset is not None and offset.first.position.end_lsn >= parse_lsn(lsn)

        run.until(durable, "the third row")
        folder.empty() if way == "emptied" else folder.put_back()
        for number in range(4, 24):
            folder.insert(number)
        run.until(lambda: run.error is not None, "the end of the run")
    (gap,) = folder.gaps()
    assert (gap.tables, gap.open) == (("public.t",), True)


def test_a_loss_that_a_sink_finds_when_it_is_opened_again_has_a_certificate_at_once(
    database, tmp_path
):
    class Away(SinkError):
        retry = RetryVerdict.RECONNECT

    def refuse(error: SinkError) -> None:
        raise error

    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    pipeline = PipelineRig(database, tmp_path, {"table.include.list": "public.t"})
    with pytest.raises(DestinationBehind), pipeline.running() as run:
        pipeline.destination.before_open = lambda: refuse(DestinationBehind("lost", replay=""))
        pipeline.destination.before_write = lambda _batch: refuse(Away("away"))
        database.execute("INSERT INTO t VALUES (2)")
        run.join()
    (gap,) = GapCertificates(pipeline.offset_file.parent).open()
    assert (gap.code, gap.tables) == (DestinationBehind.code, ("public.t",))


LAKE_LOSSES: dict[str, Callable[[Lake], object]] = {
    "removed": Lake.remove,
    "restored": Lake.restore,
    "made anew": Lake.make_anew,
    "made anew and filled": Lake.make_anew_and_fill,
}


@pytest.fixture(params=["delta", "iceberg"])
def lake(request, tmp_path) -> Lake:
    return Lake(request.param, tmp_path)


@pytest.fixture
def lake_pipeline(database, tmp_path, lake) -> PipelineRig:
    """Return one whose table has a row of a snapshot, and one of each of two runs."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    made = PipelineRig(database, tmp_path, lake.settings() | {"table.include.list": "public.t"})
    made.catch_up()
    for number in (2, 3):
        database.execute("INSERT INTO t VALUES (%s)", number)
        made.catch_up()
    assert lake.ids() == [1, 2, 3]
    return made


@pytest.mark.parametrize(
    ("loss", "changes"), [("removed", True), ("restored", False), ("made anew", True)]
)
def test_a_table_of_a_lake_that_lost_rows_ends_the_next_run(lake_pipeline, lake, loss, *, changes):
    """The table of positions is as it was."""
    LAKE_LOSSES[loss](lake)
    left = lake.ids()
    if changes:
        lake_pipeline.database.execute("INSERT INTO t VALUES (4)")
    for _ in range(2):  # the next start has not forgotten it
        with pytest.raises(
            DestinationBehind, match=r"public\.t .*waltap repair FILE.*offsets clear"
        ):
            lake_pipeline.catch_up()
    assert lake.ids() == left
    (gap,) = GapCertificates(lake_pipeline.offset_file.parent).open()
    assert (gap.code, gap.tables) == (DestinationBehind.code, ("public.t",))
    repair(lake_pipeline)
    source = {row[0] for row in lake_pipeline.database.execute("SELECT id FROM t")}
    assert set(lake.ids()) == source
    lake_pipeline.deliver("INSERT INTO t VALUES (5)")
    assert set(lake.ids()) == source | {5}


@pytest.mark.parametrize("loss", LAKE_LOSSES)
def test_a_table_of_a_lake_that_lost_rows_ends_the_run_under_way(lake_pipeline, lake, loss):
    with pytest.raises(DestinationBehind), lake_pipeline.running() as run:
        lake_pipeline.database.execute("INSERT INTO t VALUES (4)")
        run.until(lambda: 4 in lake.ids(), "the fourth row")
        LAKE_LOSSES[loss](lake)
        left = lake.ids()
        lake_pipeline.database.execute("INSERT INTO t VALUES (5)")
        run.until(lambda: run.error is not None, "the end of the run")
    assert lake.ids() == left
    (gap,) = GapCertificates(lake_pipeline.offset_file.parent).open()
    assert (gap.code, gap.tables) == (DestinationBehind.code, ("public.t",))


def test_what_the_owner_of_a_lake_does_is_no_loss(lake_pipeline, lake):
    """Compaction and expiry, between runs and under one; a restore that is undone; a table given up."""
    database = lake_pipeline.database
    lake.maintain()
    database.execute("INSERT INTO t VALUES (4)")
    with lake_pipeline.running() as run:
        run.until(lambda: 4 in lake.ids(), "the fourth row")
        lake.maintain()
        database.execute("INSERT INTO t VALUES (5)")
        run.until(lambda: 5 in lake.ids(), "the fifth row")
    assert lake.ids() == [1, 2, 3, 4, 5]
    before = lake.current()
    lake.restore()
    lake.restore(before)
    lake_pipeline.deliver("INSERT INTO t VALUES (6)")
    assert lake.ids() == [1, 2, 3, 4, 5, 6]
    lake.remove()
    database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    lake_pipeline.catch_up(**{"table.include.list": "public.u"})


def test_a_commit_that_the_positions_do_not_know_is_missed_as_well(
    lake_pipeline, lake, monkeypatch
):
    """A crash between the commit of a table and that of the position, and a restore to before both: the
    next run would leave out what the table had."""
    kind = DeltaLake if lake.kind == "delta" else IcebergLake
    keep = kind.keep

    def crash(self: DeltaLake | IcebergLake, mark: LakeOffset) -> None:
        if 4 in lake.ids():
            raise SinkError("the process is killed")
        keep(self, mark)

    monkeypatch.setattr(kind, "keep", crash)
    lake_pipeline.database.execute("INSERT INTO t VALUES (4)")
    with pytest.raises(SinkError, match="killed"):
        lake_pipeline.catch_up()
    monkeypatch.undo()
    assert lake.ids() == [1, 2, 3, 4]
    lake.restore()
    with pytest.raises(DestinationBehind):
        lake_pipeline.catch_up()
    assert lake.ids() == [1, 2, 3]


def test_files_of_an_iceberg_table_that_are_gone_are_repaired(database, tmp_path):
    """The catalogue names the table, which cannot be read."""
    lake = Lake("iceberg", tmp_path)
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    pipeline = PipelineRig(database, tmp_path, lake.settings() | {"table.include.list": "public.t"})
    pipeline.catch_up()
    (files,) = (tmp_path / "warehouse").glob("public*/t")
    shutil.rmtree(files)
    with pytest.raises(LakeGone, match="waltap repair FILE"):
        pipeline.catch_up()
    (gap,) = GapCertificates(pipeline.offset_file.parent).open()
    assert (gap.code, gap.tables) == (LakeGone.code, ("public.t",))
    lake.remove()
    repair(pipeline)
    assert lake.ids() == [1]


def test_a_position_of_an_earlier_release_knows_no_tables(lake_pipeline, lake, monkeypatch):
    """The first commit of this release takes note of the table."""
    encode = LakeOffset.encode

    def earlier(mark: LakeOffset) -> str:
        about = json.loads(encode(mark))
        del about["tables"]
        return json.dumps(about)

    monkeypatch.setattr(LakeOffset, "encode", earlier)
    lake_pipeline.deliver("INSERT INTO t VALUES (4)")
    monkeypatch.undo()
    lake_pipeline.deliver("INSERT INTO t VALUES (5)")
    assert lake.ids() == [1, 2, 3, 4, 5]
    lake.remove()
    with pytest.raises(DestinationBehind):
        lake_pipeline.catch_up()
