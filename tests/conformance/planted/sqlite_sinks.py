"""Sinks of a database behind a C driver with one planted fault each. ``caught_by`` names the promise of the
suite it breaks.

Nothing of what such a driver writes is seen from Python: only that it is called.
"""

import contextlib
import json
import sqlite3
from typing import ClassVar

import pytest

from tests.conformance.planted.sinks import Refused
from waltap.format.record import Record
from waltap.sink.fail_stop import FailStop
from waltap.sink.sink import Sink, SinkCapabilities
from waltap.source.position import Position
from waltap.specs import SinkSpec
from waltap_testing.sink_suite import SinkRig, SinkSuite


class InOneTransaction(Sink):
    """Records in SQLite, with the position of each pipeline beside them: exactly once. Right as it is."""

    capabilities = SinkCapabilities(exactly_once=True)

    def __init__(self, path, context):
        self.path, self.pipeline = path, context.pipeline
        self.link = None
        self.fail_stop = FailStop(str(path))

    def open(self):
        self.link = sqlite3.connect(self.path, timeout=0.1, isolation_level=None)
        self.link.execute(
            "CREATE TABLE IF NOT EXISTS records (n INTEGER PRIMARY KEY, topic, key, value, headers)"
        )
        self.link.execute(
            "CREATE TABLE IF NOT EXISTS positions (pipeline PRIMARY KEY, end_lsn, commit_lsn, at, whole)"
        )
        self.waiting, self.position, self.whole = [], None, True
        self.read, self.complete = {}, []  # rows of a snapshot's tables that are not durable yet
        self.kept = self.found()
        return self.kept

    def found(self):
        row = self.link.execute(
            "SELECT end_lsn, commit_lsn, at FROM positions WHERE pipeline = ? AND whole",
            [self.pipeline],
        ).fetchone()
        return None if row is None else Position(*row)

    def held(self):
        return self.kept

    def write(self, batch):
        self.fail_stop.check()
        new = batch.snapshot or batch.replays or self.kept is None or batch.position > self.kept
        rows = [self.row(record) for record in batch.records] if new else []
        if batch.snapshot:
            for part in batch.parts:
                self.take_piece(part, rows)
        else:
            self.waiting += rows
        if new:
            self.position, self.whole = batch.position, not (batch.snapshot and batch.parts)

    def row(self, record):
        headers = json.dumps([[name, value.decode()] for name, value in record.headers])
        return record.topic, record.key, record.value, headers

    def take_piece(self, part, rows):
        if part.opens:
            self.read, self.complete = {}, []
        table = self.read.setdefault(part.relation.name, [])
        table += rows
        if part.complete:
            self.complete += self.read.pop(part.relation.name)

    def flush(self):
        if self.position is None:
            return self.kept
        with self.fail_stop:
            try:
                self.publish()
            except sqlite3.Error as cause:
                raise Refused("the database did not take it") from cause
        self.kept = self.position if self.whole else None
        return self.position

    def publish(self):
        self.link.execute("BEGIN")
        self.insert()
        self.move()
        self.link.execute("COMMIT")

    def insert(self):
        for row in [*self.waiting, *self.complete]:
            self.link.execute(
                "INSERT INTO records (topic, key, value, headers) VALUES (?, ?, ?, ?)", row
            )
        self.waiting, self.complete = [], []

    def move(self):
        at = self.position
        self.link.execute(
            "INSERT OR REPLACE INTO positions VALUES (?, ?, ?, ?, ?)",
            [self.pipeline, at.end_lsn, at.commit_lsn, at.index, self.whole],
        )

    def close(self):
        if self.link is not None:
            self.link.close()
            self.link = None


def read_records(path):
    if not path.exists():
        return []
    link = sqlite3.connect(path)
    try:
        rows = link.execute("SELECT topic, key, value, headers FROM records ORDER BY n").fetchall()
    except sqlite3.OperationalError:
        return []  # no table yet
    finally:
        link.close()
    return [
        Record(
            topic, key, value, tuple((name, text.encode()) for name, text in json.loads(headers))
        )
        for topic, key, value, headers in rows
    ]


@contextlib.contextmanager
def locked(path):
    """Let every write to the database fail."""
    link = sqlite3.connect(path, isolation_level=None)
    link.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        link.close()


class PlantedInSqlite(SinkSuite):
    """The suite on a faulty sink of SQLite."""

    sink_class: ClassVar[type[Sink]]

    @pytest.fixture
    def new_rig(self):
        def make(folder):
            path = folder / "records.sqlite"
            spec = SinkSpec(name="sqlite", summary="Records.", factory=self.sink_class)
            return SinkRig(spec, path, lambda: read_records(path), outage=lambda: locked(path))

        return make


class TestInOneTransactionWithoutFault(PlantedInSqlite):
    sink_class = InOneTransaction
    caught_by = ""


class InTwoTransactions(InOneTransaction):
    def publish(self):
        self.link.execute("BEGIN")
        self.insert()
        self.link.execute("COMMIT")
        self.link.execute("BEGIN")
        self.move()
        self.link.execute("COMMIT")


class TestRowsAndPositionInTwoTransactions(PlantedInSqlite):
    sink_class = InTwoTransactions
    caught_by = "test_a_kill_at_any_step_loses_nothing"


class OnePositionForAll(InOneTransaction):
    def __init__(self, path, context):
        super().__init__(path, context)
        self.pipeline = "all"


class TestPositionIsNotPerPipeline(PlantedInSqlite):
    sink_class = OnePositionForAll
    caught_by = "test_a_position_is_of_one_pipeline"


class EmptiesForASnapshot(InOneTransaction):
    def take_piece(self, part, rows):
        if part.opens:
            self.link.execute("DELETE FROM records")
        super().take_piece(part, rows)


class TestDeletesStreamedHistoryForANewSnapshot(PlantedInSqlite):
    sink_class = EmptiesForASnapshot
    caught_by = "test_a_new_snapshot_comes_behind_what_was_streamed"


class NeverStops(InOneTransaction):
    """Gives up what was not taken, and goes on: a flush without rows would promise their position."""

    def flush(self):
        try:
            return super().flush()
        except Refused:
            self.fail_stop.reset()
            self.waiting = []
            with contextlib.suppress(sqlite3.Error):
                self.link.execute("ROLLBACK")
            raise


class TestGoesOnAfterAFailedFlush(PlantedInSqlite):
    sink_class = NeverStops
    caught_by = "test_after_a_failed_flush_nothing_is_promised"
