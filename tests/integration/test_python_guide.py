"""What docs/howto/python.md shows, run: the page quotes the marked parts of this module."""

import json
import sqlite3
from pathlib import Path

import pytest
from tests.harness.servers.postgres import Database
from tests.harness.shop import Shop

import waltap
from waltap.errors import WaltapError

TIMEOUT = 120


@pytest.fixture
def shop(database, tmp_path, monkeypatch) -> Database:
    """Return a database with a profile ``shop.toml`` for it in the current directory."""
    database.execute("CREATE TABLE orders (id int PRIMARY KEY, total numeric(10, 2))")
    database.execute("INSERT INTO orders VALUES (1, 19.90), (2, 5.25)")
    settings = {"decimal.handling.mode": "string", "offset.flush.interval.ms": 0}
    assert Shop(tmp_path, database, **settings).path == tmp_path / "shop.toml"
    monkeypatch.chdir(tmp_path)
    return database


def test_a_loop_over_batches(shop):
    totals = {}
    # [loop]
    for batch in waltap.stream("shop.toml", limits=waltap.Limits(until_idle=1)):
        for record in batch.records:
            event = json.loads(record.value)
            totals[event["after"]["id"]] = event["after"]["total"]
    # [/loop]
    assert totals == {1: "19.90", 2: "5.25"}


def test_a_destination_of_ones_own_is_exactly_once(shop):
    deliver, stop = load_into_sqlite, RuntimeError
    deliver()
    shop.execute("INSERT INTO orders VALUES (3, 1.00)")
    with pytest.raises(stop):
        deliver(fail=True)
    deliver()
    with sqlite3.connect("orders.db") as target:
        assert target.execute("SELECT * FROM orders ORDER BY id").fetchall() == [
            (1, "19.90"), (2, "5.25"), (3, "1.00"),
        ]  # fmt: skip


def load_into_sqlite(*, fail: bool = False) -> None:
    # [upsert]
    target = sqlite3.connect("orders.db")
    target.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, total TEXT)")
    for batch in waltap.stream("shop.toml", limits=waltap.Limits(until_idle=1)):
        with target:  # one transaction for each batch
            for record in batch.records:
                key = json.loads(record.key)
                after = json.loads(record.value)["after"] if record.value else None
                if after is None:  # a delete, and the tombstone behind it
                    target.execute("DELETE FROM orders WHERE id = :id", key)
                else:
                    target.execute("INSERT OR REPLACE INTO orders VALUES (:id, :total)", after)
            # [/upsert]
            if fail:
                raise RuntimeError("in the middle of a batch")
    target.close()


def test_batches_are_gathered_and_acknowledged(shop):
    for number in range(3, 10):
        shop.execute("INSERT INTO orders VALUES (%s, 1.00)", number)
    saved: list[int] = []

    def save(rows: list[dict[str, int]]) -> None:
        saved.extend(row["id"] for row in rows)

    def deliver() -> None:
        rows: list[dict[str, int]] = []
        limits = waltap.Limits(until_idle=1)
        # [ack]
        with waltap.stream("shop.toml", acknowledge="explicit", limits=limits) as batches:
            for batch in batches:
                rows += [json.loads(record.value)["after"] for record in batch.records]
                if len(rows) >= 1000:
                    save(rows)
                    batch.ack(earlier=True)  # this one, and all that came before it
                    rows.clear()
            if rows:
                save(rows)
                batch.ack(earlier=True)
        # [/ack]

    deliver()
    assert saved == list(range(1, 10))
    deliver()
    assert saved == list(range(1, 10))


def test_changes_as_they_are(shop):
    seen = []
    # [changes]
    from waltap.changes.transactions.transaction import SnapshotRows, TransactionPart

    for batch in waltap.stream("shop.toml", records=False, limits=waltap.Limits(until_idle=1)):
        for part in batch.parts:
            match part:
                case SnapshotRows():
                    seen.append((part.relation.name, len(part.rows)))
                case TransactionPart():
                    seen += [(part.commit_lsn, change) for change in part.changes]
    # [/changes]
    assert seen == [("public.orders", 2)]


def test_a_pipeline_beside_a_program(shop):
    # [pipeline]
    with waltap.Pipeline("shop.toml") as pipeline:
        pipeline.wait(lambda status: status.state == "streaming", timeout=TIMEOUT)
        answer = pipeline.signal("execute-snapshot", {"data-collections": ["public.orders"]})
        assert answer.result(timeout=TIMEOUT).accepted
        status = pipeline.wait(lambda status: status.events >= 4, timeout=TIMEOUT)
        print(status.state, status.events, status.partitions[0].lag_bytes)
    # [/pipeline]
    assert pipeline.status().state == "stopped"
    assert Path("out.jsonl").read_text().count("\n") == 4


def test_what_it_fails_with(shop):
    # [errors]
    try:
        waltap.Pipeline("shop.toml", overrides={"database.dbname": "nowhere"}).run()
    except WaltapError as error:
        reported = error.code, error.problem, error.remedy
    # [/errors]
    assert reported[0] == "WT-2004"


def test_samples_of_the_last_hour(shop):
    pipeline = waltap.Pipeline("shop.toml")
    pipeline.run(waltap.Limits(max_records=2))
    # [history]
    points = [(point.at_ms, point.rate, point.lag_bytes) for point in pipeline.history()]
    # [/history]
    assert points


def test_hooks_of_a_program(shop):
    # [hooks]
    from waltap.plugins.hookspecs import hookimpl

    class Told:
        """Hooks, for this pipeline alone."""

        states: list[str] = []

        @hookimpl
        def on_state(self, state: str) -> None:
            self.states.append(state)

    pipeline = waltap.Pipeline("shop.toml", plugins=(Told(),))
    pipeline.run(waltap.Limits(max_records=2))
    # [/hooks]
    assert "snapshot" in Told.states
