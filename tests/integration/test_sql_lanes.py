"""Several connections apply to one target: rows, order, positions and moments are those of one."""

import contextlib
import random
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.harness.changelog import Database as Model
from tests.harness.changelog import batch, context
from tests.harness.pipeline import until
from tests.harness.servers.postgres import Database
from tests.harness.sql import PEOPLE, VISITS, Place, copy_of, model, waiting
from tests.harness.sql_history import Annals, told

from waltap.errors import ConfigurationError, SinkError
from waltap.source.position import Position
from waltap.transactions.transaction import TransactionPart
from waltap_sinks.sql import SqlSink
from waltap_sinks.sql.errors import SqlCommitUnknown
from waltap_sinks.sql.parallel_apply import slices_of
from waltap_sinks.sql.shapes import TargetShapes

SERVERS = pytest.mark.parametrize("place", ["postgres", "maria"], indirect=True)


def lanes_used(sink: SqlSink) -> int:
    assert sink._lanes is not None
    return len(sink._lanes._lanes)


def work(source: Model, chance: random.Random, low: int, high: int) -> TransactionPart:
    """A transaction on people of this range, and visits that are added."""
    rows = source.rows.setdefault("public.people", [])
    for _ in range(20):
        here = [row for row in rows if low <= int(row[0] or 0) < high]
        free = sorted(set(range(low, high)) - {int(row[0] or 0) for row in here})
        kind = chance.random()
        if free and (kind < 0.4 or not here):
            source.insert(PEOPLE, [str(chance.choice(free)), f"n{chance.random()}", "x" * 9])
        elif kind < 0.5 and free:
            source.update(PEOPLE, [chance.choice(here)[0]], ["note"], id=str(chance.choice(free)))
        elif kind < 0.8:
            source.update(PEOPLE, [chance.choice(here)[0]], ["note"], name=f"m{chance.random()}")
        else:
            source.delete(PEOPLE, [chance.choice(here)[0]])
    source.insert(VISITS, [str(low), "page"])
    return source.commit()


@SERVERS
def test_random_work_leads_to_the_rows_and_versions_of_the_source(
    place: Place, tmp_path: Path
) -> None:
    """Transactions of several ranges, some of which cross; crashes between, and batches that come again."""
    chance = random.Random(5)
    source, annals = Model(), Annals()
    more = {"apply_connections": 3, "history_mode": "beside"}
    sink, used = place.opened(tmp_path, **more), 0
    for _ in range(12):
        crosses = chance.random() < 0.3
        parts = []
        count = chance.choice((3, 12, 30))
        for number in range(count):
            low = 0 if crosses else 60 * (number * 3 // count)
            parts.append(work(source, chance, low, low + 60))
        for part in parts:
            annals.take(part)
        sink.write(batch(*parts))
        used += lanes_used(sink)
        if chance.random() < 0.3:
            sink.close()
            sink = place.sink(tmp_path, **more)
            assert sink.open() == Position(parts[-1].end_lsn)
            sink.write(batch(*map(copy_of, parts)))
    assert sink.flush() == Position(parts[-1].end_lsn)
    sink.close()
    assert used > 0
    assert place.rows("people", "id", "name", "note") == model(source.rows["public.people"])
    assert place.rows("visits", "person", "page") == model(source.rows["public.visits"])
    assert told(place, PEOPLE) == annals.told(PEOPLE)


def parts_of(source: Model, count: int, rows: int = 70, first: int = 0) -> list[TransactionPart]:
    found = []
    for number in range(count):
        source.insert(PEOPLE, *[[str(first + number * 1000 + n), "new", None] for n in range(rows)])
        source.insert(VISITS, [str(number), "page"])
        found.append(source.commit())
    return found


def ready(place: Place, folder: Path, source: Model) -> SqlSink:
    """Return a sink with three connections, whose tables are there."""
    sink = place.opened(folder, apply_connections=3)
    source.insert(PEOPLE, ["-1", "first", None])
    source.insert(VISITS, ["-1", "first"])
    sink.write(batch(source.commit()))
    return sink


@SERVERS
def test_what_is_before_a_slice_that_fails_stays_and_the_rest_goes_in_by_one(
    place: Place, tmp_path: Path
) -> None:
    """A row that is there already breaks the second of three; nothing is doubled, all of it goes in."""
    source = Model()
    sink = ready(place, tmp_path, source)
    place.execute("INSERT INTO people VALUES (1005, 'theirs', 'theirs')")
    parts = parts_of(source, 3)
    sink.write(batch(*parts))
    assert sink.flush() == Position(parts[-1].end_lsn)
    assert place.rows("people", "id", "name", "note") == model(source.rows["public.people"])
    assert place.rows("visits", "person", "page") == model(source.rows["public.visits"])
    sink.close()


@pytest.mark.parametrize("handed_over", [False, True])
def test_what_a_lane_committed_unanswered_is_not_applied_again(
    postgres: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, handed_over: bool
) -> None:
    """The server commits the second of three, and the answer is lost. The position that stands there is
    written over by nobody, and the next opening goes on from it."""
    monkeypatch.setattr("waltap_sinks.sql.sink.HANDED_OVER", 1 if handed_over else 10_000)
    source = Model()
    sink = ready(postgres, tmp_path, source)
    sink.write(batch(*parts_of(source, 3)))
    promised = sink.flush()
    assert promised is not None
    lane = sink._lanes._lanes[1]  # type: ignore[union-attr]
    commit = lane.target.commit

    def unanswered(*, durable: bool = True) -> None:
        commit(durable=durable)
        lane.target.raw.close()  # type: ignore[attr-defined]
        raise psycopg.OperationalError("no answer")

    monkeypatch.setattr(lane.target, "commit", unanswered)
    parts = parts_of(source, 3, first=5000)
    with pytest.raises(SqlCommitUnknown):
        sink.write(batch(*map(copy_of, parts)))
        sink.flush()
    with contextlib.suppress(SinkError):
        assert sink.flush() in (promised, Position(parts[0].end_lsn))
    sink.close()
    again = postgres.sink(tmp_path, apply_connections=3)
    assert again.open() == Position(parts[1].end_lsn)
    again.write(batch(*parts))
    assert again.flush() == Position(parts[-1].end_lsn)
    assert postgres.rows("visits", "person", "page") == model(source.rows["public.visits"])
    again.close()


def test_lanes_that_cannot_connect_leave_it_to_one(
    database: Database, postgres: Place, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database.execute("CREATE ROLE narrow LOGIN SUPERUSER")
    place = Place(
        "postgresql",
        database.dsn.replace(f"//{database.server.user}", "//narrow"),
        postgres.connect,
    )
    source = Model()
    sink = ready(place, tmp_path, source)
    database.execute("ALTER ROLE narrow NOLOGIN")
    parts = parts_of(source, 3)
    sink.write(batch(*parts))
    assert sink.flush() == Position(parts[-1].end_lsn)
    assert "no other could be made" in caplog.text
    assert place.rows("visits", "person", "page") == model(source.rows["public.visits"])
    sink.close()
    database.execute("DROP OWNED BY narrow")
    database.execute("DROP ROLE narrow")


def test_later_slices_wait_for_those_before_them(
    database: Database, postgres: Place, tmp_path: Path
) -> None:
    """Somebody holds a row of the first; the second and third are ready, and nobody sees them."""
    source = Model()
    sink = ready(postgres, tmp_path, source)
    source.update(PEOPLE, ["-1"], name="held")
    parts = parts_of(source, 3)
    seen: list[Any] = []
    with database.connect(autocommit=False) as other:
        other.execute("SELECT * FROM people WHERE id = -1 FOR UPDATE")
        writer = threading.Thread(target=lambda: sink.write(batch(*parts)))
        writer.start()
        until(lambda: waiting(postgres), "the first to wait")
        seen += database.execute("SELECT count(*) FROM people")
    writer.join(90)
    assert seen == [(1,)]
    assert sink.flush() == Position(parts[-1].end_lsn)
    assert postgres.rows("people", "id", "name", "note") == model(source.rows["public.people"])
    assert postgres.rows("visits", "person", "page") == model(source.rows["public.visits"])
    sink.close()


def test_slices_share_no_row(tmp_path: Path, file: Place) -> None:
    sink = file.sink(tmp_path)
    shapes = TargetShapes(context(tmp_path).events, sink._properties, schemas=False)
    source = Model()
    first, second, third = parts_of(source, 3)
    assert slices_of([first, second, third], shapes, 3) == [[first], [second], [third]]
    source.update(PEOPLE, ["3"], name="of the first")
    source.insert(PEOPLE, *[[str(n), "new", None] for n in range(5000, 5070)])
    fourth = source.commit()
    assert slices_of([first, second, fourth], shapes, 3) == [[first, second, fourth]]
    assert slices_of([second, third, fourth], shapes, 3) == [[second], [third], [fourth]]
    source.update(PEOPLE, ["5000"], id="2003")
    source.insert(PEOPLE, *[[str(n), "new", None] for n in range(6000, 6070)])
    fifth = source.commit()
    assert slices_of([first, third, fifth], shapes, 3) == [[first], [third, fifth]]
    source.truncate(PEOPLE)
    assert slices_of([first, source.commit()], shapes, 3) == []
    source.insert(VISITS, ["1", "a"])
    source.delete(VISITS, ["1", "a"])
    assert slices_of([first, source.commit()], shapes, 3) == []


def test_a_target_of_one_writer_takes_one_connection(
    file: Place, duck: Place, tmp_path: Path
) -> None:
    for postgres in (file, duck):
        with pytest.raises(ConfigurationError, match=r"apply\.connections"):
            postgres.sink(tmp_path, apply_connections=2)


@SERVERS
def test_only_the_instance_that_opened_last_commits(place: Place, tmp_path: Path) -> None:
    source = Model()
    first = ready(place, tmp_path, source)
    parts = parts_of(source, 3)
    with contextlib.closing(place.opened(tmp_path, apply_connections=3)) as second:
        with pytest.raises(Exception, match="WT-5708"):
            first.write(batch(*parts))
        first.close()
        assert len(place.rows("people", "id")) == 1
        second.write(batch(*map(copy_of, parts)))
    assert place.rows("people", "id", "name", "note") == model(source.rows["public.people"])
