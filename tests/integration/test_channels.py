"""Signals that come by other ways than the signal table, and notifications, in a running pipeline."""

import json
import os
from pathlib import Path

import pytest
from tests.harness.pipeline import PipelineRig
from tests.harness.servers.postgres import Database

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.notifications import Notification
from waltap.ports.signals import Signal
from waltap.ports.specs import NotificationChannelSpec, SignalChannelSpec

SIGNALS = "CREATE TABLE signals (id varchar(64) PRIMARY KEY, type varchar(32) NOT NULL, data text);"
ROWS = "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 25);"


class Kept:
    """A plugin with a channel of either kind; ``faults`` are what they raise."""

    def __init__(self) -> None:
        self.sent: list[Notification] = []
        self.waiting: list[Signal] = []
        self.faults: list[Exception] = []
        self.closed = 0

    @hookimpl
    def register_notification_channels(self):
        spec = NotificationChannelSpec(name="kept", summary="Keeps.", factory=lambda _: self)
        return [spec]

    @hookimpl
    def register_signal_channels(self):
        return [SignalChannelSpec(name="given", summary="Gives.", factory=lambda _: self)]

    def send(self, notification: Notification) -> None:
        if self.faults:
            raise self.faults[0]
        self.sent.append(notification)

    def poll(self) -> list[Signal]:
        if self.faults:
            raise self.faults[0]
        found, self.waiting = self.waiting, []
        return found

    def close(self) -> None:
        self.closed += 1

    def told(self, aggregate: str) -> list[str]:
        return [n.kind for n in self.sent if n.aggregate_type == aggregate]


@pytest.fixture
def kept() -> Kept:
    return Kept()


@pytest.fixture
def pipeline(database: Database, tmp_path: Path) -> PipelineRig:
    database.execute(SIGNALS + ROWS)
    return PipelineRig(
        database,
        tmp_path,
        {
            "signal.data.collection": "public.signals",
            "signal.enabled.channels": "file,given",
            "signal.file": str(tmp_path / "asks.txt"),
            "signal.poll.interval.ms": 20,
            "notification.enabled.channels": "kept,log",
            "snapshot.mode": "no_data",
            "incremental.snapshot.chunk.size": 10,
        },
    )


def ask(folder: Path, name: str = "ad-hoc-1", *tables: str) -> None:
    data = {"data-collections": list(tables) or ["public.t"]}
    line = json.dumps({"id": name, "type": "execute-snapshot", "data": data})
    with (folder / "asks.txt").open("a") as file:
        file.write(line + "\n")


def completed(kept: Kept) -> bool:
    return "COMPLETED" in kept.told("Incremental Snapshot")


def test_a_signal_of_the_file_reads_a_table_and_every_step_is_notified(
    pipeline: PipelineRig, kept: Kept, tmp_path: Path
) -> None:
    ask(tmp_path)  # before the start: it is not lost
    with pipeline.running(kept) as run:
        run.until(lambda: completed(kept), "the snapshot's end")
        run.until(lambda: len(pipeline.destination.ids("t", "r")) == 25, "the rows")
    assert pipeline.destination.ids("t", "r") == list(range(1, 26))
    assert run.notices.signals == [("execute-snapshot", "ad-hoc-1")]
    assert kept.told("Initial Snapshot") == ["SKIPPED"]
    assert kept.told("Incremental Snapshot") == [
        "STARTED", *["IN_PROGRESS"] * 3, "TABLE_SCAN_COMPLETED", "COMPLETED",
    ]  # fmt: skip
    mine = [n for n in kept.sent if n.aggregate_type == "Incremental Snapshot"]
    assert {n.identifier for n in mine} == {"ad-hoc-1"}
    second, scanned = mine[2], mine[4]
    assert second.additional_data == {
        "connector_name": "p",
        "data_collections": "public.t",
        "current_collection_in_progress": "public.t",
        "maximum_key": "25",
        "last_processed_key": "20",
    }
    assert scanned.additional_data is not None
    assert scanned.additional_data["status"] == "SUCCEEDED"
    assert scanned.additional_data["total_rows_scanned"] == "25"
    assert kept.closed >= 2


def test_rows_of_the_signal_table_are_no_signals_without_the_channel_source(
    pipeline: PipelineRig, database: Database, kept: Kept, tmp_path: Path
) -> None:
    with pipeline.running(kept) as run:
        database.execute(
            "INSERT INTO signals VALUES ('by-table', 'execute-snapshot',"
            """ '{"data-collections": ["public.t"]}')"""
        )
        run.until(lambda: pipeline.destination.of("signals"), "the row")
        ask(tmp_path, "by-file")
        run.until(lambda: completed(kept), "the snapshot's end")
    assert run.notices.signals == [("execute-snapshot", "by-file")]


def test_what_was_asked_for_survives_the_end_of_the_run(pipeline: PipelineRig, kept: Kept) -> None:
    with pipeline.running(kept) as run:
        kept.waiting = [Signal("1", "pause-snapshot", ""), Signal("2", "execute-snapshot",
            '{"data-collections": ["public.t"]}')]  # fmt: skip
        run.until(lambda: ("execute-snapshot", "2") in run.notices.signals, "the signal")
        run.until(lambda: stored(pipeline).get("queue"), "the offset to have it")
    assert pipeline.destination.ids("t", "r") == []
    kept.waiting = [Signal("3", "resume-snapshot", "")]
    with pipeline.running(kept) as run:
        run.until(lambda: len(pipeline.destination.ids("t", "r")) == 25, "the rows")
    assert kept.told("Incremental Snapshot")[:2] == ["STARTED", "RESUMED"]


def stored(pipeline: PipelineRig) -> dict[str, object]:
    offset = pipeline.offset()
    return {} if offset is None else dict(offset.signals)


def test_a_channel_that_fails_is_told_once_and_stops_nothing(
    pipeline: PipelineRig, database: Database, kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    kept.faults = [OSError(os.strerror(5))]
    with pipeline.running(kept) as run:
        database.execute("INSERT INTO t VALUES (100)")
        run.until(lambda: pipeline.destination.ids("t", "c") == [100], "the row")
        kept.faults = []
        kept.waiting = [Signal("9", "execute-snapshot", '{"data-collections": ["public.t"]}')]
        run.until(lambda: completed(kept), "the snapshot's end")
    told = [record for record in caplog.records if "channel " in record.getMessage()]
    assert sorted(record.args[0] for record in told) == ["given", "kept"]


def test_an_initial_snapshot_is_notified(pipeline: PipelineRig, kept: Kept) -> None:
    pipeline.settings["snapshot.mode"] = "initial"
    with pipeline.running(kept) as run:
        run.until(lambda: "COMPLETED" in kept.told("Initial Snapshot"), "the snapshot")
    kinds = kept.told("Initial Snapshot")
    assert (kinds[0], kinds[-1]) == ("STARTED", "COMPLETED")
    scans = [n.additional_data for n in kept.sent if n.kind == "TABLE_SCAN_COMPLETED"]
    (scan,) = [s for s in scans if s and s["scanned_collection"] == "public.t"]
    assert (scan["total_rows_scanned"], scan["status"]) == ("25", "SUCCEEDED")
    assert "public.t" in scan["data_collections"].split(",")
