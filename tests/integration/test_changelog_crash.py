"""A crash at any step of writing the change log loses nothing and doubles nothing."""

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.changelog import Database, batch, context, in_parts, relation, replay

from waltap.changes.decode.message import Insert
from waltap.changes.transactions.position import START, Position
from waltap.changes.transactions.transaction import Batch, TransactionPart
from waltap_sinks.changelog import ChangeLog, ChangeLogProperties, ChangeLogSink, FileStore

ORDERS = relation("public.orders", [("id", "int4"), ("state", "text")])
LINES = relation("public.lines", [("id", "int4"), ("amount", "text")])


class Crash(BaseException):
    """The process ends here. Not an Exception, so that nothing can catch and fix it."""


class CrashingFilesystem:
    """The real filesystem, until step ``last``: then the process is gone, before or after the act."""

    def __init__(self, real: Any, last: int) -> None:
        self._real, self._left = real, last
        self.steps = 0

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._real, name)
        if not callable(attribute):
            return attribute

        def step(*arguments: Any, **options: Any) -> Any:
            self._count()
            result = attribute(*arguments, **options)
            self._count()
            return result

        return step

    def _count(self) -> None:
        self.steps += 1
        if self.steps == self._left:
            raise Crash


class Engine:
    """What of the engine matters here: the stored offset, and delivery that goes on from there."""

    def __init__(self, path: Path, database: Database, stream: list[TransactionPart]) -> None:
        self.path, self.database, self.stream = path, database, stream
        self.stored: Position | None = None
        self.snapshot_done = False

    def run(self, store: FileStore) -> None:
        settings = ChangeLogProperties(path=str(self.path), chunk_rows=2, memory_bytes=0)
        sink = ChangeLogSink(
            settings, context(self.path, resumes=self.stored is not None), store=store
        )
        held = sink.open()
        if self.stored is None:
            self.stored = START
        if not self.snapshot_done:
            for part in self.database.snapshot(ORDERS, LINES, rows_each=2):
                sink.write(part)
                sink.flush()
            self.snapshot_done = True
        elif held is not None and held > self.stored:
            self.stored = held
        for part in batches(self.stream, self.stored):
            sink.write(part)
            durable = sink.flush()
            if durable is not None:
                assert durable >= self.stored, "an offset never moves backwards"
                self.stored = durable
        sink.close()


def batches(stream: list[TransactionPart], after: Position) -> Iterator[Batch]:
    """Deliver the transactions after ``after``, a large one in parts."""
    for transaction in stream:
        if transaction.end_lsn <= after.end_lsn:
            continue
        if len(transaction.changes) > 3:
            count = len(transaction.changes)
            for part in in_parts(transaction, 3, 2, count - 5):
                yield batch(part)
        else:
            yield batch(transaction)


def workload() -> tuple[Database, list[TransactionPart], dict[str, list[Any]]]:
    """Return a database with rows to snapshot, the stream after it, and the rows in the end."""
    database = Database()
    for number in range(5):
        database.insert(ORDERS, [str(number), "new"])
        database.insert(LINES, [str(number), "1"])
    database.commit()
    at_snapshot = Database()
    at_snapshot.lsn, at_snapshot.rows = (
        database.lsn,
        {name: list(rows) for name, rows in database.rows.items()},
    )
    stream = []
    database.insert(ORDERS, ["10", "new"])
    stream.append(database.commit())
    for number in range(5):
        database.update(LINES, [str(number)], amount="2")
        database.update(ORDERS, [str(number)], state="paid")
    stream.append(database.commit())
    database.truncate(LINES)
    database.insert(LINES, ["1", "3"])
    stream.append(database.commit())
    database.update(ORDERS, ["10"], id="11")
    database.delete(ORDERS, ["0"])
    stream.append(database.commit())
    return at_snapshot, stream, database.rows


def store(path: Path, crash_at: int) -> tuple[FileStore, CrashingFilesystem]:
    made = FileStore(str(path))
    faulty = CrashingFilesystem(made._fs, crash_at)
    made._fs = faulty
    return made, faulty


def check(path: Path, expected: dict[str, list[Any]]) -> None:
    log = ChangeLog(str(path))
    for table in ("orders", "lines"):
        found = [row for part in log.rows("public", table) for row in part.to_pylist()]
        streamed = Counter(
            (row["_commit_lsn"], row["_seq"], row["_sub"]) for row in found if row["_op"] != "r"
        )
        assert max(streamed.values()) == 1, "doubled"
        state = sorted(
            tuple(map(str, row.values())) for row in replay(after_snapshot(found), ["id"])
        )
        assert state == sorted(expected[f"public.{table}"]), "lost"


def after_snapshot(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out snapshots that a later complete one replaces, as readers do."""
    first = max(n for n, row in enumerate(found) if row["_op"] == "r")
    while first and found[first - 1]["_op"] == "r":
        first -= 1
    rows: dict[int, dict[str, Any]] = {}
    kept = []
    for row in found[first:]:
        if row["_op"] == "r":
            rows[row["id"]] = row
        else:
            kept.append(row)
    return [*rows.values(), *kept]


@pytest.fixture(autouse=True)
def one_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all manifests in one folder, as within ten minutes: each new one is a step more."""
    monkeypatch.setattr("waltap_sinks.changelog.sink.bucket_of", lambda _moment: "20260101T000")


@pytest.mark.parametrize("every", [23, pytest.param(7, marks=pytest.mark.exhaustive)])
def test_two_crashes_in_a_row_lose_and_double_nothing(tmp_path: Path, every: int) -> None:
    """The second one hits the run that fixes what the first has left."""
    at_snapshot, stream, expected = workload()
    whole, counted = store(tmp_path / "whole", -1)
    Engine(tmp_path / "whole", at_snapshot, stream).run(whole)
    for first in range(5, counted.steps, every):
        for second in (1, 2, 4, 7, 11):
            path = tmp_path / f"{first}-{second}"
            engine = Engine(path, at_snapshot, stream)
            for step in (first, second):
                crashing, _ = store(path, step)
                with contextlib.suppress(Crash):
                    engine.run(crashing)
                crashing.unlock()
            engine.run(store(path, -1)[0])
            check(path, expected)


def test_a_failed_flush_keeps_nothing_and_delivery_starts_again(tmp_path: Path) -> None:
    """A disk that is full for a while: the same sink goes on from the last manifest."""
    at_snapshot, stream, expected = workload()
    path = tmp_path / "log"
    engine = Engine(path, at_snapshot, stream)
    made = FileStore(str(path))
    real = made._fs
    failing: list[int] = [0]

    class Full:
        def __getattr__(self, name: str) -> Any:
            attribute: Callable[..., Any] = getattr(real, name)
            if name != "open_output_stream":
                return attribute

            def refuse_sometimes(*arguments: Any, **named: Any) -> Any:
                failing[0] += 1
                if failing[0] in (4, 9, 21, 31, 32, 39):
                    raise OSError(28, "No space left on device")
                return attribute(*arguments, **named)

            return refuse_sometimes

    made._fs = Full()
    for _attempt in range(30):
        try:
            engine.run(made)
            break
        except Exception as error:
            assert "No space left" in str(error)
    check(path, expected)


@pytest.mark.parametrize("tables", [2, 40])
def test_all_that_a_manifest_names_is_durable_before_it_appears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tables: int
) -> None:
    """Files, and every folder on the way to them: with few tables, and with so many that they share."""
    durable: set[str] = set()
    fsync = os.fsync

    def noting(fd: int) -> None:
        fsync(fd)
        durable.add(os.readlink(f"/proc/self/fd/{fd}"))

    monkeypatch.setattr(os, "fsync", noting)
    path = tmp_path / "log"
    made = FileStore(str(path))
    published: list[set[str]] = []

    class Watched:
        def __getattr__(self, name: str) -> Any:
            if name == "move":
                published.append(set(durable))
            return getattr(real, name)

    real = made._fs
    made._fs = Watched()
    sink = ChangeLogSink(ChangeLogProperties(path=str(path)), context(tmp_path), store=made)
    sink.open()
    published.clear()  # the log's id
    for lsn in (100, 200):
        changes = [
            Insert(relation(f"public.t{number}", [("id", "int4")]), lsn, (str(lsn),))
            for number in range(tables)
        ]
        part = TransactionPart(
            xid=lsn, begin_lsn=lsn, commit_lsn=lsn, commit_ts=0, end_lsn=lsn + 8, changes=changes
        )
        sink.write(Batch(parts=[part], position=Position(lsn + 8), events=tables))
        sink.flush()
    sink.close()
    log = ChangeLog(str(path))
    for manifest, before in zip(log.manifests(), published, strict=True):
        assert len(manifest.tables) == tables
        for entry in manifest.tables:
            file = path / entry.segments[0].path
            assert str(file) in before
            for folder in file.parents:
                if folder.is_relative_to(path):
                    assert str(folder) in before
