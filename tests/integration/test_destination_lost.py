"""A destination that lost what it had: the run ends and says so, and a repair brings it back."""

import contextlib
import itertools
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import logged_ids
from tests.harness.lakes import Lake
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

from waltap.errors import RetryVerdict, SinkError
from waltap.pipeline.api.repair import GapRepair
from waltap.ports.offsets.gaps import CaptureGap, GapCertificates
from waltap.ports.sink.stored_position import DestinationBehind
from waltap_lake.errors import LakeGone
from waltap_sinks.sql.errors import SqlTableGone
from waltap_testing.sinks.losses import keeping

FOLDERS: dict[str, tuple[dict[str, str], tuple[str, str]]] = {
    "changelog": ({"sink.type": "changelog", "sink.path": "{}/out"}, ("WT-5109", "WT-5107")),
    "sqlite": ({"sink.type": "sql", "sink.url": "sqlite:///{}/out/x.db"}, ("WT-5003", "WT-5003")),
}
"""A sink that finds a loss itself, and one whose position the engine compares; that every sink notices one,
its suite sees (`waltap_testing.sinks.losses`)."""


class Folder:
    """A destination that is a folder, whose state somebody keeps; ``emptied`` and ``older`` put back what was kept."""

    def __init__(self, kind: str, database: Database, folder: Path) -> None:
        settings, self.codes = FOLDERS[kind]
        self.kind, self.out = kind, folder / "out"
        self.out.mkdir()
        self.keep = keeping(self.out)
        self.emptied = self.older = self.keep()
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

    def ids(self) -> list[int]:
        if self.kind == "sqlite":
            return [row[0] for row in self.execute("SELECT id FROM t WHERE v = 'a' ORDER BY id")]
        return sorted(logged_ids(self.out))

    def insert(self, number: int) -> None:
        self.pipeline.database.execute("INSERT INTO t VALUES (%s, 'a')", number)

    def gaps(self) -> list[CaptureGap]:
        return GapCertificates(self.pipeline.offset_file.parent).all()


def refused_until_repaired(
    pipeline: PipelineRig, code: str, before: Callable[[], object] = lambda: None
) -> CaptureGap:
    """See that each run ends, and that a repair ends that; return the gap as it was. ``before`` precedes the repair."""
    for _ in range(2):  # the next start has not forgotten it
        with pytest.raises(SinkError) as lost:
            pipeline.catch_up()
        assert lost.value.code == code
        assert "waltap repair FILE" in lost.value.advice()
    certificates = GapCertificates(pipeline.offset_file.parent)
    (gap,) = certificates.all()
    assert (gap.code, gap.tables, gap.open) == (code, ("public.t",), True)
    before()
    host, _ = pipeline.host()
    GapRepair(pipeline.profile(host), host, patience_s=1.0).run(lambda: 0)  # what was lost stays so
    (after,) = certificates.all()
    assert (after.open, after.by) == (False, "repair")
    return gap


@pytest.fixture(params=FOLDERS)
def folder(request, database, tmp_path) -> Folder:
    """Return one with two rows, of a run each, of which the state with the first was kept."""
    made = Folder(request.param, database, tmp_path)
    made.pipeline.catch_up()
    made.older = made.keep()
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
        folder.emptied() if emptied else folder.older()
    folder.insert(3)
    gap = refused_until_repaired(pipeline, code)
    assert loss in LOSSES or (gap.begin.lsn == "0/0") is emptied
    assert set(folder.ids()) == {1, 2, 3}
    folder.insert(4)
    pipeline.catch_up()
    assert set(folder.ids()) == {1, 2, 3, 4}


def test_a_folder_that_is_brought_back_has_no_gap(folder):
    pipeline, newer = folder.pipeline, folder.keep()
    folder.older()
    folder.insert(3)
    with pytest.raises(SinkError):
        pipeline.catch_up()
    (gap,) = folder.gaps()
    assert gap.open
    newer()
    pipeline.catch_up()
    (gap,) = folder.gaps()
    assert (gap.open, gap.by) == (False, "destination")
    assert folder.ids() == [1, 2, 3]


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


# --- lakes; what their sinks take for a loss: test_lakes.py ---------------------------------------------


def without_files(lake: Lake) -> None:
    """Leave a table of a catalogue that cannot be read."""
    (files,) = (lake.folder / "warehouse").glob("public*/t")
    shutil.rmtree(files)


@pytest.mark.parametrize(
    ("kind", "loss", "code"),
    [
        ("delta", Lake.restore, DestinationBehind.code),
        ("iceberg", without_files, LakeGone.code),
    ],
)
def test_a_lake_that_lost_rows_ends_each_run_until_it_is_repaired(
    database, tmp_path, kind, loss, code
):
    lake = Lake(kind, tmp_path)
    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    pipeline = PipelineRig(database, tmp_path, lake.settings() | {"table.include.list": "public.t"})
    pipeline.catch_up()
    for number in (2, 3):
        pipeline.deliver(f"INSERT INTO t VALUES ({number})")
    loss(lake)
    refused_until_repaired(
        pipeline, code, before=lake.remove if loss is without_files else lambda: None
    )
    pipeline.deliver("INSERT INTO t VALUES (4)")
    assert set(lake.ids()) == {1, 2, 3, 4}
    lake.remove()  # a table that is given up may go
    database.execute("CREATE TABLE u (id int PRIMARY KEY)")
    pipeline.catch_up(**{"table.include.list": "public.u"})
