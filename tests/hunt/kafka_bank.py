"""A bank through Kafka, exactly once: engines are killed, the broker restarts, a consumer keeps the books.

    python -m tests.hunt.kafka_bank --rows 1000000 --kills 50 --restarts 5

Transfers move money between accounts, several in a transaction. Whoever reads ``read_committed`` must see
every change once, the changes of an account in their order, and the same sum whenever there is nothing more
to read, and wherever one transaction ends and the next begins.
"""

import argparse
import json
import random
import threading
import time
import uuid
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import NewTopic
from tests.harness.engine_process import EngineProcess
from tests.harness.kafka import create
from tests.harness.meanwhile import WAIT_S, meanwhile
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Database
from tests.hunt.bank_day import run_bank

ACCOUNTS = 50
BALANCE = 1_000
TOTAL = ACCOUNTS * BALANCE
TRANSFERS, BOOKS = "bank.public.transfers", "bank.public.accounts"

TABLES = """
CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL, version int NOT NULL);
CREATE TABLE transfers (id bigserial PRIMARY KEY, giver int, taker int, amount int);
CREATE PROCEDURE move_money(transfers int) LANGUAGE plpgsql AS $$
DECLARE a int; b int; x int;
BEGIN
  FOR i IN 1 .. transfers LOOP
    a := 1 + floor(random() * %(accounts)s); b := 1 + floor(random() * %(accounts)s);
    x := floor(random() * 100);
    INSERT INTO transfers (giver, taker, amount) VALUES (a, b, x);
    UPDATE accounts SET balance = balance - x, version = version + 1 WHERE id = a;
    UPDATE accounts SET balance = balance + x, version = version + 1 WHERE id = b;
  END LOOP;
END $$;
"""
ROWS_PER_TRANSFER = 3


class Teller:
    """Moves money until ``rows`` rows were written, then in small sums until it is to stop."""

    def __init__(self, database: Database, rows: int, seed: int) -> None:
        self._database, self._rows, self._chance = database, rows, random.Random(seed)
        self.moved = 0

    def work(self, stop: threading.Event) -> None:
        with self._database.connect() as connection:
            while self.moved * ROWS_PER_TRANSFER < self._rows or not stop.is_set():
                done = self.moved * ROWS_PER_TRANSFER >= self._rows
                count = 1 if done else self._chance.choice((1, 1, 2, 5, 40, 200))
                connection.execute("CALL move_money(%s)", [count])
                self.moved += count
                stop.wait(0.02 if done else 0.001)


class Auditor:
    """Reads the books as any consumer does; ``wrong`` has what is not as promised."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self.balances: dict[int, int] = {}
        self.versions: dict[int, int] = {}
        self.transfers: Counter[int] = Counter()
        self.wrong: list[str] = []
        self.sums = 0
        self._transaction: int | None = None

    def read(self, stop: threading.Event) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._kafka.bootstrap,
                "group.id": str(uuid.uuid4()),
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "log_level": 0,
            }
        )
        consumer.assign(
            [TopicPartition(BOOKS, 0, OFFSET_BEGINNING)]
            + [TopicPartition(TRANSFERS, p, OFFSET_BEGINNING) for p in range(3)]
        )
        while not stop.is_set():
            for message in consumer.consume(1000, 0.1):
                error = message.error()
                if error is None:
                    self._take(str(message.topic()), json.loads(message.value() or b"null"))
                elif error.code() == KafkaError._PARTITION_EOF and message.topic() == BOOKS:
                    self._sum("at the end of what can be read")
        consumer.close()

    def _take(self, topic: str, event: dict[str, Any]) -> None:
        row, xid = event["after"], event["source"]["txId"]
        if topic == TRANSFERS:
            self.transfers[row["id"]] += 1
            return
        if self._transaction not in (None, xid):
            self._sum(f"behind transaction {self._transaction}")
        self._transaction = xid
        account, version = row["id"], row["version"]
        if version != self.versions.get(account, -1) + 1:
            self._note(f"account {account}: version {version} after {self.versions.get(account)}")
        self.versions[account], self.balances[account] = version, row["balance"]

    def _sum(self, where: str) -> None:
        if not self.balances:
            return
        self.sums += 1
        if sum(self.balances.values()) != TOTAL:
            self._note(f"the sum is {sum(self.balances.values())} {where}")

    def _note(self, what: str) -> None:
        if len(self.wrong) < 20:
            self.wrong.append(what)

    def taken(self) -> int:
        return len(self.transfers) + sum(self.versions.values())


class Bank:
    """One run of the story."""

    def __init__(self, database: Database, kafka: Kafka, folder: Path, seed: int) -> None:
        self._database, self._kafka = database, kafka
        self._seed, self._chance = seed, random.Random(seed)
        source = {
            **database.properties(),
            "slot.name": database.name,
            "publication.name": database.name,
            "topic.prefix": "bank",
            "snapshot.mode": "no_data",
            "table.include.list": "public.accounts,public.transfers",
            "offset.flush.interval.ms": 50,
            "slot.retry.delay.ms": 2000,
        }
        sink = {
            "type": "kafka",
            "bootstrap.servers": kafka.bootstrap,
            "delivery.guarantee": "exactly_once",
            "transactional.id": f"bank-{database.name}",
        }
        self._engine = EngineProcess(folder, source, sink)

    def play(self, *, rows: int, kills: int, restarts: int) -> Auditor:
        """Return the books at the end of it all."""
        database, kafka, engine = self._database, self._kafka, self._engine
        create(kafka.bootstrap, NewTopic(BOOKS, 1), NewTopic(TRANSFERS, 3))
        database.execute(TABLES % {"accounts": ACCOUNTS})
        auditor, teller = Auditor(kafka), Teller(database, rows, self._seed)
        try:
            engine.start()
            engine.until(engine.ready, "the first start")
            database.execute(
                "INSERT INTO accounts SELECT g, %s, 0 FROM generate_series(1, %s) g",
                BALANCE, ACCOUNTS,
            )  # fmt: skip
            events = ["kill"] * kills + ["restart"] * restarts
            self._chance.shuffle(events)
            with meanwhile(auditor.read) as reading:
                with meanwhile(teller.work, within=WAIT_S * 10):
                    for event in events:
                        self._live(auditor, reading[0])
                        if event == "kill":
                            engine.kill()
                            engine.start()
                        else:
                            kafka.kill()
                            kafka.start()
                rest = ROWS_PER_TRANSFER * teller.moved
                self._until(auditor, reading[0], rest, WAIT_S * 10)
        finally:
            engine.kill()
        return auditor

    def _live(self, auditor: Auditor, reading: "Future[None]") -> None:
        """Wait until something came, then for a random moment."""
        self._until(auditor, reading, auditor.taken() + 1)
        time.sleep(self._chance.random() * 0.5)  # the random moment itself

    def _until(
        self, auditor: Auditor, reading: "Future[None]", taken: int, within: float = WAIT_S
    ) -> None:
        self._engine.until(
            lambda: reading.done() or auditor.taken() >= taken, f"{taken} rows", within
        )
        if reading.done():
            reading.result()


def verdict(auditor: Auditor, moved: int) -> list[str]:
    """Return what is not as promised, of ``moved`` transfers."""
    found = list(auditor.wrong)
    twice = [number for number, count in auditor.transfers.items() if count > 1]
    if twice:
        found.append(f"{len(twice)} transfers came more than once, first {min(twice)}")
    if len(auditor.transfers) != moved:
        found.append(f"{len(auditor.transfers)} transfers of {moved} came")
    if sum(auditor.versions.values()) != 2 * moved:
        found.append(f"{sum(auditor.versions.values())} changes of accounts, not {2 * moved}")
    return found


def play(
    given: argparse.Namespace, database: Database, kafka: Kafka, folder: Path
) -> tuple[str, list[str]]:
    bank = Bank(database, kafka, folder, given.seed)
    books = bank.play(rows=given.rows, kills=given.kills, restarts=given.restarts)
    ((moved,),) = database.execute("SELECT count(*) FROM transfers")
    done = (
        f"{moved * ROWS_PER_TRANSFER:,} rows, {given.kills} kills, {given.restarts} restarts, "
        f"{books.sums:,} sums"
    )
    return done, verdict(books, moved)


if __name__ == "__main__":
    run_bank(
        __doc__ or "",
        {"rows": 1_000_000, "kills": 50, "restarts": 5},
        lambda: Kafka.create(heap_mb=512, restarts=True),
        play,
        right="every change once, in order, every sum right",
    )
