"""Sinks with one planted fault each: `SinkSuite` finds every one.

Three small sinks are right without them: lines of a file, current rows, and records behind a C driver.
"""

import contextlib
import dataclasses
import json
import os
import sqlite3

import orjson
from tests.harness.planted_faults import Faults, FindsFaults

from waltap.changes.decode.message import Delete, Insert, Truncate, Update
from waltap.changes.decode.tuple_image import UNCHANGED
from waltap.changes.events import EventPlans
from waltap.changes.events.event import Record
from waltap.changes.transactions.position import Position, Positions
from waltap.changes.transactions.transaction import SnapshotRows
from waltap.errors import SinkError
from waltap.ports.sink.refusal import FailStop
from waltap.ports.sink.sink import Sink, SinkCapabilities
from waltap.ports.specs import SinkSpec
from waltap_testing.sinks.losses import keeping
from waltap_testing.suites.sink import DeliveredChange, SinkRig, SinkSuite

FAULTS = Faults()
IN_ORDER = "test_everything_flushed_is_there_once_and_in_order"
STOPS = "test_after_a_failed_flush_nothing_is_promised"
REFUSES = 'raise Refused("the file did not take it") from cause'


class Refused(SinkError):
    """The file did not take it."""

    code = "WT-5900"


@FAULTS.right
class Lines(Sink):
    """A file of lines: at least once, durable at flush. Right as it is."""

    capabilities = SinkCapabilities(json_only=True)

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

    @classmethod
    def rig(cls, folder):
        path = folder / "lines"
        spec = SinkSpec(name="lines", summary="Lines.", factory=cls)
        return SinkRig(spec, path, lambda: list(cls.read(path)))

    @staticmethod
    def read(path):
        """Read as a tolerant consumer: what is no line is left out."""
        for line in path.read_bytes().split(b"\n")[:-1] if path.exists() else ():
            with contextlib.suppress(ValueError):
                topic, key, value, headers = orjson.loads(line)
                parts = [None if part is None else part.encode() for part in (key, value)]
                yield Record(topic, *parts, tuple((n, v.encode()) for n, v in headers))


FAULTS.edit(
    Lines,
    ("LosesTheLast", IN_ORDER, "view = memoryview(self.pending)", "view = memoryview(b''.join(self.pending.splitlines(keepends=True)[:-1]))"),
    ("Reorders", IN_ORDER, "in records)", "in sorted(records, key=lambda record: (record.topic, record.key or b'')))"),
    ("StartsOver", "test_a_sink_opened_again_continues", "self.path.touch()", "self.path.write_bytes(b'')"),
    ("LeavesTornLines", "test_a_kill_inside_a_write_loses_nothing", "file.truncate(len(whole[0]) + len(whole[1]))", "pass"),
    ("CutsByWritingAnew", "test_a_kill_while_it_opens_loses_nothing", 'with self.path.open("r+b") as file:\n            file.truncate(len(whole[0]) + len(whole[1]))', "self.path.write_bytes(whole[0] + whole[1])"),
    ("LeaksOsError", "test_a_destination_that_refuses_loses_nothing", REFUSES, "raise"),
    ("SwallowsOsError", "test_a_destination_that_refuses_loses_nothing", REFUSES, "self.pending = b''"),
    ("FlushesAgain", STOPS, "def flush(self):", "def flush(self):\n        self.fail_stop.reset()"),
    ("TakesMore", STOPS, "self.fail_stop.check()", "pass"),
    ("EmptyTombstones", "test_records_without_key_and_with_headers_survive", "(record.key, record.value)]", "(record.key, record.value or b'\"\"')]"),
    ("BreaksText", "test_text_survives", "headers]) +", "headers]).replace('\\u2028'.encode(), b' ') +"),
    ("SkipsEmptyBatches", "test_an_empty_batch_moves_the_position", "= batch.position", "= batch.position if batch.records else self.accepted"),
    ("ClosesOnce", "test_close_may_be_called_twice", "(self.file)\n            self.file = None", "(self.file)", OSError),
    ("PromisesTheFuture", "test_flush_promises_the_last_whole_transaction", "return self.accepted", "return self.accepted and Position(self.accepted.end_lsn + 8)"),
    ("NamesThePartition", "test_a_batch_without_a_partition_is_promised_without_one", "return self.accepted", "return self.accepted and Positions({'public': self.accepted})"),
    ("DropsSnapshots", "test_a_snapshot_is_followed_by_the_stream", "self.fail_stop.check()", "if batch.snapshot:\n            return"),
    ("EmptiesItsBatch", "test_batches_that_come_in_stay_as_they_are", "self.accepted = batch.position", "self.accepted, batch.records = batch.position, []"),
    ("ExpectsATable", "test_parts_without_rows_move_the_position", "self.fail_stop.check()", "[getattr(p, 'relation', None) or p.changes[0].relation for p in batch.parts]", AttributeError),
    ("ForgetsItsPosition", "test_a_sink_opened_again_continues", "(json_only=True)", "(json_only=True, exactly_once=True)"),
    ("TakesJsonAlone", "test_bytes_survive_unless_json_is_asked_for", "(json_only=True)", "()", UnicodeDecodeError),
)  # fmt: skip


@FAULTS.right
class ManyPartitions(Lines):
    """Promises each partition's position. Right as it is."""

    capabilities = SinkCapabilities(partitions=True, json_only=True)

    def __init__(self, path, context):
        super().__init__(path, context)
        self.each = Positions()

    def write(self, batch):
        super().write(batch)
        self.each = self.each.advanced(batch.partition, batch.position)

    def flush(self):
        super().flush()
        return self.each or None


FAULTS.edit(ManyPartitions, ("PromisesTheLastAlone", "test_positions_of_two_partitions_keep_apart", "self.each.advanced", "Positions().advanced"))  # fmt: skip


@FAULTS.found_by("test_positions_of_two_partitions_keep_apart", right=ManyPartitions)
class ClaimsPartitions(Lines):
    capabilities = SinkCapabilities(partitions=True)


@FAULTS.found_by("test_a_kill_at_any_step_loses_nothing")
class PromisesEarly(Lines):
    """Writes through a buffer of its own and promises what is still in it."""

    def flush(self):
        if len(self.pending) > 600:
            super().flush()
        return self.accepted

    def close(self):
        super().flush()
        super().close()


@FAULTS.found_by("test_a_schema_change_is_taken_in_mid_stream")
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
        return super().line(Record(record.topic, record.key, kept, record.headers))


# --- destinations of current rows ---


@FAULTS.right
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

    def stored_position(self):
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

    @classmethod
    def rig(cls, folder):
        path = folder / "rows"
        spec = SinkSpec(name="rows", summary="Rows.", factory=cls)
        return SinkRig(spec, path, lambda: list(cls.read(path)), stores_history=False)

    @staticmethod
    def read(path):
        tables = json.loads(path.read_text())[0] if path.exists() else {}
        for topic, table in tables.items():
            for row in table.values():
                yield DeliveredChange(topic.removeprefix("server."), "r", row)


FAULTS.edit(
    Rows,
    ("ForgetsDeletes", IN_ORDER, "table.pop(key, None)", "pass"),
    ("ForgetsTruncates", IN_ORDER, "table.clear()", "pass"),
    ("AsksTheMarker", "test_a_snapshot_is_whole_whichever_tables_are_empty", "return part.complete", "return part.last_marker == 'last'"),
    ("NeverBeginsAnew", "test_a_snapshot_that_broke_off_is_replaced_by_the_next", "if part.opens:", "if False:"),
    ("CopiesInPlace", "test_a_kill_at_any_step_loses_nothing", "new.replace(self.path)", "self.path.write_bytes(new.read_bytes())", ValueError),
    ("FirstVersionWins", IN_ORDER, "else:\n            table[key]", "elif value['op'] in 'cr' or key not in table:\n            table[key]"),
)  # fmt: skip


@FAULTS.right
class OfChanges(Rows):
    """Current rows of the changes themselves. Right as it is."""

    capabilities = SinkCapabilities(records=False, exactly_once=True)

    def __init__(self, path, context):
        super().__init__(path, context)
        self.plans = EventPlans(context.events, lambda plan: (plan.columns, plan.masks()))

    def take_rows(self, batch):
        self.whole = not batch.parts
        for part in batch.parts:
            if part.opens:
                self.read = {}
            name = f"server.{part.relation.name}"
            table = self.read.setdefault(name, {})
            for row in part.rows:
                self.put(table, part.relation, row)
            if part.complete:
                self.rows[name] = self.read.pop(name)

    def take_changes(self, batch):
        for part in batch.parts:
            if isinstance(part, SnapshotRows):
                self.take_piece(part)
            for change in getattr(part, "changes", ()):
                self.take(change)

    def take_piece(self, piece):
        for row in piece.rows:
            self.put(self.table(piece.relation), piece.relation, row)

    def take(self, change):
        if isinstance(change, Truncate):
            for relation in change.relations:
                self.table(relation).clear()
        elif isinstance(change, Delete):
            self.table(change.relation).pop(change.old[0], None)
        elif isinstance(change, Insert | Update):
            table = self.table(change.relation)
            old = getattr(change, "old", ())
            if old and old[0] != change.new[0]:
                self.move(table, old[0], change.new[0])
            self.put(table, change.relation, change.new)

    def move(self, table, old, new):
        table[new] = table.pop(old, {})

    def table(self, relation):
        return self.rows.setdefault(f"server.{relation.name}", {})

    def put(self, table, relation, row):
        had, (columns, masks) = table.get(row[0], {}), self.plans.of(relation)
        row = [masks.get(n, lambda value: value)(value) for n, value in enumerate(row)]
        table[row[0]] = {c.field: self.value(had.get(c.field), row[c.index]) for c in columns}

    def value(self, had, sent):
        return had if sent is UNCHANGED else sent


SELDOM = "test_rows_follow_what_comes_seldom"
FAULTS.edit(
    OfChanges,
    ("LeavesTheOldKey", SELDOM, "table[new] = table.pop(old, {})", "pass"),
    ("NullForUnsent", SELDOM, "return had if", "return None if"),
    ("ShiftsColumns", "test_a_column_that_is_left_out_moves_no_other", "row[c.index]) for c in columns}", "row[n]) for n, c in enumerate(columns)}"),
    ("ShowsAll", "test_a_hidden_value_is_not_delivered", "EventPlans(context.events", "EventPlans(dataclasses.replace(context, capture=None).events"),
    ("PassesOverPieces", SELDOM, "for row in piece.rows:", "for row in ():"),
    ("TruncatesTheFirst", SELDOM, "in change.relations:", "in change.relations[:1]:"),
    ("TakesAPieceForTheTable", SELDOM, "def take_piece(self, piece):", "def take_piece(self, piece):\n        self.table(piece.relation).clear()"),
)  # fmt: skip


@FAULTS.found_by("test_a_kill_before_the_offset_is_stored_doubles_nothing", right=Rows)
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


# --- a database behind a C driver ---


@FAULTS.right
class InOneTransaction(Sink):
    """Records in SQLite, with the position of each pipeline beside them: exactly once. Right as it is."""

    capabilities = SinkCapabilities(exactly_once=True)

    def __init__(self, path, context):
        self.path, self.pipeline, self.has_offset = path, context.pipeline, context.has_offset
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
        self.kept = self.found() if self.has_offset else None
        return self.kept

    def found(self):
        row = self.link.execute(
            "SELECT end_lsn, commit_lsn, at FROM positions WHERE pipeline = ? AND whole",
            [self.pipeline],
        ).fetchone()
        return None if row is None else Position(*row)

    def stored_position(self):
        return self.kept

    def write(self, batch):
        self.fail_stop.check()
        new = batch.snapshot or batch.redelivers or self.kept is None or batch.position > self.kept
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

    @classmethod
    def rig(cls, folder):
        path = folder / "records.sqlite"
        spec = SinkSpec(name="sqlite", summary="Records.", factory=cls)
        return SinkRig(spec, path, lambda: read_records(path), outage=lambda: locked(path))


def read_records(path):
    if not path.exists():
        return []
    with contextlib.closing(sqlite3.connect(path)) as link:
        try:
            rows = link.execute("SELECT * FROM records ORDER BY n").fetchall()
        except sqlite3.OperationalError:
            return []  # no table yet
    return [
        Record(*parts, tuple((name, text.encode()) for name, text in json.loads(headers)))
        for _, *parts, headers in rows
    ]


@contextlib.contextmanager
def locked(path):
    """Let every write to the database fail."""
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as link:
        link.execute("BEGIN IMMEDIATE")
        yield


FAULTS.edit(
    InOneTransaction,
    ("InTwoTransactions", "test_a_kill_at_any_step_loses_nothing", "self.insert()", "self.insert()\n        self.link.execute('COMMIT')\n        self.link.execute('BEGIN')"),
    ("KnowsAnotherHistory", "test_a_stream_without_an_offset_is_new", " if self.has_offset else None", ""),
    ("OnePositionForAll", "test_a_position_is_of_one_pipeline", "context.pipeline", "'all'"),
    ("EmptiesForASnapshot", "test_a_new_snapshot_comes_behind_what_was_streamed", "if part.opens:", "if part.opens:\n            self.link.execute('DELETE FROM records')"),
)  # fmt: skip


@FAULTS.found_by(STOPS)
class HidesWhatItsWriteReports(InOneTransaction):
    """Its write fails in an outage, its flush does not say that it failed."""

    def write(self, batch):
        try:
            self.link.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as cause:
            raise Refused("the database is locked") from cause
        self.link.execute("ROLLBACK")
        super().write(batch)

    def publish(self):
        try:
            super().publish()
        except sqlite3.Error:
            self.link.execute("ROLLBACK")


@FAULTS.found_by("test_a_snapshot_of_another_server_is_followed_by_its_stream")
class PassesOverWhatIsBeforeItsStart(InOneTransaction):
    def open(self):
        self.began = super().open()
        return self.began

    def write(self, batch):
        if batch.snapshot or self.began is None or batch.position > self.began:
            super().write(batch)


@FAULTS.right
class KnowsItsFile(InOneTransaction):
    """Sees that its database is the one that it opened. Right as it is."""

    def open(self):
        stored_position = super().open()
        self.link.execute("PRAGMA journal_mode=WAL")  # in other modes SQLite itself sees that
        self.opened = self.path.stat().st_ino
        return stored_position

    def publish(self):
        if not self.path.exists() or self.path.stat().st_ino != self.opened:
            raise Refused("the database was replaced")
        super().publish()

    @classmethod
    def rig(cls, folder):
        return dataclasses.replace(super().rig(folder), keep=keeping(folder / "records.sqlite"))


FAULTS.edit(KnowsItsFile, ("WritesOn", "test_a_loss_beneath_an_open_sink_is_noticed", 'raise Refused("the database was replaced")', "pass"))  # fmt: skip


@FAULTS.found_by("test_a_destination_that_lost_something_is_noticed_when_opened")
class TakesItsOwnWord(KnowsItsFile):
    """Keeps the position beside the data: it does not go back with them."""

    def __init__(self, path, context):
        super().__init__(path, context)
        self.note = context.state_dir / "note"

    def found(self):
        return Position(*map(int, self.note.read_text().split())) if self.note.exists() else None

    def flush(self):
        promised = super().flush()
        if promised is not None:
            self.note.write_text(f"{promised.end_lsn} {promised.commit_lsn} {promised.index}")
        return promised


@FAULTS.found_by("test_a_destination_that_lost_something_is_noticed_when_opened")
class RefusesWithoutALoss(KnowsItsFile):
    """Finds out, and raises what the engine keeps no certificate of."""

    def __init__(self, path, context):
        super().__init__(path, context)
        self.note = context.state_dir / "note"

    def open(self):
        stored_position = super().open()
        if self.note.exists() and str(stored_position) != self.note.read_text():
            raise Refused("it is another one")
        return stored_position

    def flush(self):
        promised = super().flush()
        self.note.write_text(str(promised))
        return promised


@FAULTS.found_by("test_a_repair_continues_with_what_is_left", SinkError)
class RefusesARepair(RefusesWithoutALoss):
    pass


@FAULTS.found_by(STOPS)
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


class TestPlantedSinks(FindsFaults):
    suite = SinkSuite
    faults = FAULTS

    def fixtures(self, plugin, folder):
        def opened():
            sink = plugin.rig(folder).build(folder)
            assert sink.open() is None
            return sink

        return {"new_rig": lambda: plugin.rig, "rig": lambda: plugin.rig(folder), "sink": opened}
