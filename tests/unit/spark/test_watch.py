"""What a commit brought to each table, and what waits, are read off the change log; of any format."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.harness.changelog import WrittenLog, relation
from typer.testing import CliRunner

from waltap_sinks.changelog import ChangeLog
from waltap_spark.cli import commands
from waltap_spark.cli.commands import application
from waltap_spark.sink.output_monitor import AppliedSoFar, OutputMonitor
from waltap_spark.state.output import OutputState, SparkOutput, TableState

ORDERS = relation("public.orders", [("id", "int4"), ("state", "text")])
ITEMS = relation("public.items", [("id", "int4"), ("state", "text")], oid=77)


class Lake(WrittenLog):
    """A change log, and the commits of tables that follow it, without Spark."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "lake", str(folder / "lake/changelog"))
        self.open()
        self.output = SparkOutput(f"{self.folder}/tables")
        self.state: OutputState = self.output.open(self.path)
        self.next = 1

    def change(self, **rows: int) -> None:
        for relation_ in (ORDERS, ITEMS):
            for _ in range(rows.get(relation_.table, 0)):
                self.db.insert(relation_, [str(self.next), "new"])
                self.next += 1
        self.flush(self.db.commit())

    def commit(self, **still: str) -> None:
        last = self.newest
        assert last.last_commit_ts is not None
        tables = {}
        for name in ("orders", "items"):
            table = TableState(schema="public", table=name)
            if name in still:
                table = msgspec.structs.replace(
                    table, failed=still[name], log_position=self.state.log_position
                )
            tables[f"public.{name}"] = table
        self.state = msgspec.structs.replace(
            self.state,
            number=self.state.number + 1,
            log_position=last.log_position,
            committed_at=(last.last_commit_ts + 1_500_000) / 1e6,
            last_commit_ts=last.last_commit_ts,
            tables=tables,
        )
        self.output.commit(self.state)

    def now(self, after_s: int = 0) -> int:
        return (self.newest.last_commit_ts or 0) // 1000 + after_s * 1000


@pytest.fixture
def lake(tmp_path) -> Any:
    made = Lake(tmp_path)
    yield made
    made.close()
    made.output.close()


def test_a_table_that_stands_still_gets_nothing_and_all_waits(lake):
    lake.change(orders=1, items=1)
    lake.commit()
    lake.change(orders=2, items=4)
    lake.commit(items="its type changed")
    found = OutputMonitor(lake.output).progress(lake.now())
    assert found.batches[-1].rows == {"public.orders": 2}
    assert [(each.waiting_rows, each.failed) for each in found.tables] == [
        (4, "its type changed"),
        (0, ""),
    ]


def test_rows_whose_manifests_were_expired_are_unknown_and_later_ones_are_not(lake):
    lake.change(orders=1)
    lake.change(orders=2)
    lake.commit()
    lake.change(items=3)
    lake.commit()
    lake.log.expire(lake.manifests()[0].log_position, "99991231T235")
    found = OutputMonitor(lake.output).progress(lake.now())
    assert [each.rows for each in found.batches] == [None, {"public.items": 3}]


def test_the_command_and_the_status_page_show_it(lake):
    lake.change(orders=1200)
    lake.commit()
    lake.change(items=34)
    shown = CliRunner().invoke(
        application, ["top", str(lake.folder), "--once"], env={"COLUMNS": "120"}
    )
    assert shown.exit_code == 0
    for text in ("public.orders", "1,200", "public.items", "34", "#1", "1.5 s late"):
        assert text in shown.output
    reported = CliRunner().invoke(application, ["top", str(lake.folder), "--json"])
    assert msgspec.json.decode(reported.output)["batches"][0]["rows"] == {"public.orders": 1200}
    progress = AppliedSoFar(f"{lake.folder}/tables").downstream_progress(lake.newest.log_position)
    assert {each.table: (each.batch_rows, each.waiting_rows) for each in progress.tables} == {
        "public.orders": (1200, 0),
        "public.items": (0, 34),
    }


def test_the_first_commit_appears_while_the_command_runs(lake, monkeypatch):
    drawn: list[Any] = []

    def draw(view: Callable[[], Any], _every_s: float) -> None:
        drawn.append(view())
        lake.commit()
        drawn.append(view())

    lake.change(orders=1)
    monkeypatch.setattr(commands, "draw_until_interrupted", draw)
    assert CliRunner().invoke(application, ["top", str(lake.folder)]).exit_code == 0
    assert "nothing was applied yet" in str(drawn[0])
    assert str(drawn[1].columns[0]._cells) == "['public.items', 'public.orders']"


def test_what_waits_for_a_table_that_stands_still_is_counted_on(lake, monkeypatch):
    """The log behind it may be that of days: nobody reads all of it at each look."""
    lake.change(orders=1, items=1)
    lake.commit()
    lake.change(items=1)
    lake.commit(items="a type")
    watch = OutputMonitor(lake.output)
    read: list[object] = []
    manifests = ChangeLog.manifests

    def counted(self: ChangeLog, *log_positions: Any) -> Any:
        for manifest in manifests(self, *log_positions):
            read.append(manifest)
            yield manifest

    for rows in range(1, 4):
        lake.change(items=rows, orders=1)
        now = lake.now(after_s=3)
        assert watch.progress(now).tables == OutputMonitor(lake.output).progress(now).tables
        with monkeypatch.context() as patch:
            patch.setattr(ChangeLog, "manifests", counted)
            read.clear()
            watch.progress(now)
            assert len(read) == rows, "what waits behind the commit, and no more"
    lake.state = msgspec.structs.replace(
        lake.state,
        tables={name: TableState(schema="public", table=name[7:]) for name in lake.state.tables},
    )
    lake.commit()
    assert [each.waiting_rows for each in watch.progress(lake.now()).tables] == [0, 0]
