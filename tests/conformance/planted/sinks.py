"""Sinks with one planted fault each. ``caught_by`` names the promise of the suite it breaks.

The faults stand in a small sink of lines that is right without them, or in our own `jsonl`.
"""

import json
import os
from typing import ClassVar

import orjson
import pytest

from waltap.errors import SinkError
from waltap.format.record import Record
from waltap.sink.fail_stop import FailStop
from waltap.sink.sink import Sink, SinkCapabilities
from waltap.source.position import Position, Positions
from waltap.specs import SinkSpec
from waltap_testing.sink_suite import Delivered, SinkRig, SinkSuite


class Refused(SinkError):
    """The file did not take it."""

    code = "WT-5900"


class Lines(Sink):
    """A file of lines: at least once, durable at flush. Right as it is."""

    capabilities = SinkCapabilities()

    def __init__(self, path, context):
        self.path, self.context = path, context
        self.file = None
        self.accepted = None
        self.pending = b""
        self.fail_stop = FailStop(str(path))

    def open(self):
        self.path.touch()
        whole = self.path.read_bytes().rpartition(b"\n")
        with self.path.open("r+b") as file:
            file.truncate(len(whole[0]) + len(whole[1]))
        self.file = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        return None

    def write(self, batch):
        self.fail_stop.check()
        self.pending += self.block(batch.records)
        self.accepted = batch.position

    def block(self, records):
        return b"".join(self.line(record) for record in records)

    def line(self, record):
        headers = [[name, value.decode()] for name, value in record.headers]
        texts = [None if part is None else part.decode() for part in (record.key, record.value)]
        return orjson.dumps([record.topic, *texts, headers]) + b"\n"

    def flush(self):
        with self.fail_stop:
            try:
                view = memoryview(self.pending)
                while view:
                    view = view[os.write(self.file, view) :]
                self.pending = b""
                os.fsync(self.file)
            except OSError as cause:
                raise Refused("the file did not take it") from cause
        return self.accepted

    def close(self):
        if self.file is not None:
            os.close(self.file)
            self.file = None


def read_lines(path):
    found = []
    for line in path.read_text().split("\n")[:-1] if path.exists() else ():
        topic, key, value, headers = json.loads(line)
        parts = [None if part is None else part.encode() for part in (key, value)]
        found.append(Record(topic, *parts, tuple((n, v.encode()) for n, v in headers)))
    return found


class Planted(SinkSuite):
    """The suite on a faulty sink."""

    sink_class: ClassVar[type[Sink]]

    @pytest.fixture
    def new_rig(self):
        def make(folder):
            path = folder / "lines"
            spec = SinkSpec(name="lines", summary="Lines.", factory=self.sink_class)
            return SinkRig(spec, path, lambda: read_lines(path))

        return make


class TestWithoutFault(Planted):
    sink_class = Lines
    caught_by = ""


class LosesTheLast(Lines):
    def flush(self):
        head, _, tail = self.pending[:-1].rpartition(b"\n")
        self.pending = head + b"\n" if head else tail[:0]
        return super().flush()


class TestLosesTheLastRecordAtFlush(Planted):
    sink_class = LosesTheLast
    caught_by = "test_everything_flushed_is_there_once_and_in_order"


class ManyPartitions(Lines):
    """Promises each partition's position. Right as it is."""

    capabilities = SinkCapabilities(partitions=True)

    def __init__(self, path, context):
        super().__init__(path, context)
        self.each = Positions()

    def write(self, batch):
        super().write(batch)
        self.each = self.each.moved(batch.partition, batch.position)

    def flush(self):
        super().flush()
        return self.each or None


class TestTakesSeveralPartitions(Planted):
    sink_class = ManyPartitions
    caught_by = ""


class PromisesTheLastAlone(ManyPartitions):
    def write(self, batch):
        self.each = Positions()
        super().write(batch)


class TestForgetsTheOtherPartition(Planted):
    sink_class = PromisesTheLastAlone
    caught_by = "test_positions_of_two_partitions_keep_apart"


class ClaimsPartitions(Lines):
    capabilities = SinkCapabilities(partitions=True)


class TestClaimsPartitionsAndKnowsOne(Planted):
    sink_class = ClaimsPartitions
    caught_by = "test_positions_of_two_partitions_keep_apart"


class NamesThePartition(Lines):
    def flush(self):
        promised = super().flush()
        return None if promised is None else Positions({"public": promised})


class TestNamesThePartitionThatHasNoName(Planted):
    sink_class = NamesThePartition
    caught_by = "test_a_batch_without_a_partition_is_promised_without_one"


class Reorders(Lines):
    def block(self, records):
        return super().block(sorted(records, key=lambda record: (record.topic, record.key or b"")))


class TestReordersInABatch(Planted):
    sink_class = Reorders
    caught_by = "test_everything_flushed_is_there_once_and_in_order"


class PromisesEarly(Lines):
    """Writes through a buffer of its own and promises what is still in it."""

    def flush(self):
        if len(self.pending) > 600:
            super().flush()
        return self.accepted

    def close(self):
        super().flush()
        super().close()


class TestPromisesBeforeItIsDurable(Planted):
    sink_class = PromisesEarly
    caught_by = "test_a_kill_at_any_step_loses_nothing"


class ClaimsExactlyOnce(Lines):
    """Stores the position in a second file, after the data: a crash between them doubles."""

    capabilities = SinkCapabilities(exactly_once=True)

    def open(self):
        super().open()
        mark = self.path.with_suffix(".position")
        if not mark.exists():
            return None
        return Position(*json.loads(mark.read_text()))

    def flush(self):
        promised = super().flush()
        if promised is not None:
            mark = self.path.with_suffix(".position")
            new = mark.with_suffix(".new")
            new.write_text(json.dumps([promised.end_lsn, promised.commit_lsn, promised.index]))
            new.replace(mark)
        return promised


class TestClaimsExactlyOnceAndIsNot(Planted):
    sink_class = ClaimsExactlyOnce
    caught_by = "test_a_kill_before_the_offset_is_stored_doubles_nothing"


class ForgetsItsPosition(Lines):
    capabilities = SinkCapabilities(exactly_once=True)


class TestClaimsExactlyOnceAndForgets(Planted):
    sink_class = ForgetsItsPosition
    caught_by = "test_a_sink_opened_again_goes_on"


class StartsOver(Lines):
    def open(self):
        self.path.write_bytes(b"")
        return super().open()


class TestStartsOverWhenOpenedAgain(Planted):
    sink_class = StartsOver
    caught_by = "test_a_sink_opened_again_goes_on"


class LeavesTornLines(Lines):
    def open(self):
        self.file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        return None


def read_whole_lines(path):
    """Read as a tolerant consumer: what is no line is left out."""
    found = []
    for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
        try:
            topic, key, value, headers = orjson.loads(line)
        except ValueError:
            continue
        parts = [None if part is None else part.encode() for part in (key, value)]
        found.append(Record(topic, *parts, tuple((n, v.encode()) for n, v in headers)))
    return found


class TestLeavesTornLines(Planted):
    sink_class = LeavesTornLines
    caught_by = "test_a_kill_inside_a_write_loses_nothing"

    @pytest.fixture
    def new_rig(self):
        def make(folder):
            path = folder / "lines"
            spec = SinkSpec(name="lines", summary="Lines.", factory=self.sink_class)
            return SinkRig(spec, path, lambda: read_whole_lines(path))

        return make


class LeaksOsError(Lines):
    def flush(self):
        try:
            return super().flush()
        except Refused as refused:
            raise refused.__cause__ from None


class TestLeaksOsErrorOnAFullDisk(Planted):
    sink_class = LeaksOsError
    caught_by = "test_a_destination_that_refuses_loses_nothing"


class SwallowsOsError(Lines):
    def flush(self):
        try:
            return super().flush()
        except Refused:
            self.pending = b""
            return self.accepted


class TestPromisesOnAFullDisk(Planted):
    sink_class = SwallowsOsError
    caught_by = "test_a_destination_that_refuses_loses_nothing"


class FlushesAgain(Lines):
    def flush(self):
        self.fail_stop.reset()
        return super().flush()


class TestPromisesAfterAFailedFlush(Planted):
    sink_class = FlushesAgain
    caught_by = "test_after_a_failed_flush_nothing_is_promised"


class TakesMore(Lines):
    def write(self, batch):
        self.pending += self.block(batch.records)
        self.accepted = batch.position


class TestTakesMoreAfterAFailedFlush(Planted):
    sink_class = TakesMore
    caught_by = "test_after_a_failed_flush_nothing_is_promised"


class EmptyTombstones(Lines):
    def line(self, record):
        return super().line(Record(record.topic, record.key, record.value or b'""', record.headers))


class TestTombstonesAreEmptyTexts(Planted):
    sink_class = EmptyTombstones
    caught_by = "test_records_without_key_and_with_headers_survive"


class BreaksText(Lines):
    def line(self, record):
        return super().line(record).replace(b"\\u2028", b" ").replace("\u2028".encode(), b" ")


class TestBreaksText(Planted):
    sink_class = BreaksText
    caught_by = "test_text_survives"


class SkipsEmptyBatches(Lines):
    def write(self, batch):
        if batch.records:
            super().write(batch)


class TestSkipsEmptyBatches(Planted):
    sink_class = SkipsEmptyBatches
    caught_by = "test_an_empty_batch_moves_the_position"


class ClosesOnce(Lines):
    def close(self):
        os.close(self.file)


class TestClosesOnlyOnce(Planted):
    sink_class = ClosesOnce
    caught_by = "test_close_may_be_called_twice"


class PromisesTheFuture(Lines):
    def flush(self):
        promised = super().flush()
        return None if promised is None else Position(promised.end_lsn + 8)


class TestPromisesMoreThanItTook(Planted):
    sink_class = PromisesTheFuture
    caught_by = "test_flush_promises_the_last_whole_transaction"


class FirstColumnsForEver(Lines):
    """Remembers the columns of the first row of a topic, and writes those of every later row."""

    def __init__(self, path, context):
        super().__init__(path, context)
        self.columns = {}

    def line(self, record):
        if record.value is None:
            return super().line(record)
        value = orjson.loads(record.value)
        known = self.columns.setdefault(record.topic, set(value))
        kept = orjson.dumps({name: item for name, item in value.items() if name in known})
        return super().line(replace_value(record, kept))


def replace_value(record, value):
    return Record(record.topic, record.key, value, record.headers)


class TestIgnoresSchemaChanges(Planted):
    sink_class = FirstColumnsForEver
    caught_by = "test_a_schema_change_is_taken_in_mid_stream"


class DropsSnapshots(Lines):
    def write(self, batch):
        if not batch.snapshot:
            super().write(batch)


class TestDropsSnapshots(Planted):
    sink_class = DropsSnapshots
    caught_by = "test_a_snapshot_is_followed_by_the_stream"


# --- destinations of current rows ---


class Rows(Sink):
    """The current rows and the position, in one file that is replaced: exactly once. Right."""

    capabilities = SinkCapabilities(exactly_once=True)

    def __init__(self, path, context):
        self.path, self.pipeline = path, context.pipeline
        self.rows, self.position, self.kept = {}, None, None
        self.read = {}  # tables of a snapshot that are not complete yet
        self.whole = True

    def open(self):
        if not self.path.exists():
            return None
        self.rows, self.whole, position, pipeline = json.loads(self.path.read_text())
        if pipeline != self.pipeline:
            raise Refused(f"it is written by {pipeline}")
        self.position = Position(*position)
        self.kept = self.position if self.whole else None
        return self.kept

    def held(self):
        return self.kept

    def write(self, batch):
        if batch.snapshot:
            self.take_rows(batch)
        else:
            self.take_changes(batch)
        self.position = batch.position

    def take_rows(self, batch):
        self.whole = not batch.parts
        for part in batch.parts:
            topic = f"server.{part.relation.name}"
            if part.opens:
                self.read = {}
            table = self.read.setdefault(topic, {})
            for record in batch.records:
                self.apply(table, orjson.loads(record.key)["id"], orjson.loads(record.value))
            if self.is_complete(part):
                self.rows[topic] = self.read.pop(topic)

    def is_complete(self, part):
        return part.complete

    def take_changes(self, batch):
        for record in batch.records:
            table = self.rows.setdefault(record.topic, {})
            value = None if record.value is None else orjson.loads(record.value)
            if value is not None and value["op"] == "t":
                self.empty(table)
            else:
                self.apply(table, orjson.loads(record.key)["id"], value)

    def empty(self, table):
        table.clear()

    def apply(self, table, key, value):
        if value is None or value["op"] == "d":
            table.pop(key, None)
        else:
            table[key] = value

    def flush(self):
        if self.position is None:
            return None
        position = [self.position.end_lsn, self.position.commit_lsn, self.position.index]
        new = self.path.with_suffix(".new")
        try:
            new.write_bytes(orjson.dumps([self.rows, self.whole, position, self.pipeline]))
            self.publish(new)
        except OSError as cause:
            raise Refused("the file did not take it") from cause
        self.kept = self.position if self.whole else None
        return self.position

    def publish(self, new):
        new.replace(self.path)

    def close(self):
        pass


def read_rows(path):
    tables = json.loads(path.read_text())[0] if path.exists() else {}
    return [
        Delivered(topic.removeprefix("server."), "r", row)
        for topic, table in tables.items()
        for row in table.values()
    ]


class PlantedRows(SinkSuite):
    """The suite on a faulty sink of rows."""

    sink_class: ClassVar[type[Sink]]

    @pytest.fixture
    def new_rig(self):
        def make(folder):
            path = folder / "rows"
            spec = SinkSpec(name="rows", summary="Rows.", factory=self.sink_class)
            return SinkRig(spec, path, lambda: read_rows(path), keeps_history=False)

        return make


class TestRowsWithoutFault(PlantedRows):
    sink_class = Rows
    caught_by = ""


class ForgetsDeletes(Rows):
    def apply(self, table, key, value):
        if value is not None and value["op"] != "d":
            table[key] = value


class TestForgetsDeletes(PlantedRows):
    sink_class = ForgetsDeletes
    caught_by = "test_everything_flushed_is_there_once_and_in_order"


class ForgetsTruncates(Rows):
    def empty(self, table):
        pass


class TestDeclaresTruncatesAndForgetsThem(PlantedRows):
    sink_class = ForgetsTruncates
    caught_by = "test_everything_flushed_is_there_once_and_in_order"


class AsksTheMarker(Rows):
    def is_complete(self, part):
        return part.last_marker == "last"


class TestTakesTheLastMarkerForTheEndOfATable(PlantedRows):
    sink_class = AsksTheMarker
    caught_by = "test_a_snapshot_is_whole_whichever_tables_are_empty"


class NeverBeginsAnew(Rows):
    def take_rows(self, batch):
        for part in batch.parts:
            part.opens = False
        super().take_rows(batch)


class TestKeepsRowsOfASnapshotThatBrokeOff(PlantedRows):
    sink_class = NeverBeginsAnew
    caught_by = "test_a_snapshot_that_broke_off_is_replaced_by_the_next"


class CopiesInPlace(Rows):
    def publish(self, new):
        self.path.write_bytes(new.read_bytes())


class TestReplacesRowsInPlace(PlantedRows):
    sink_class = CopiesInPlace
    caught_by = "test_a_kill_at_any_step_loses_nothing"


class FirstVersionWins(Rows):
    def apply(self, table, key, value):
        if value is None or value["op"] in ("d", "c", "r") or key not in table:
            super().apply(table, key, value)


class TestKeepsTheFirstVersion(PlantedRows):
    sink_class = FirstVersionWins
    caught_by = "test_everything_flushed_is_there_once_and_in_order"
