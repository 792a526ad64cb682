"""A bank through Kafka, exactly once: engines are killed, the broker restarts, a consumer keeps the books.

    python -m tests.hunt.kafka_bank --kills 50 --restarts 5 --audits 100000

Whoever reads ``read_committed`` must see every change once, the changes of an account in their order, and the same
sum whenever there is nothing more to read, and wherever one transaction ends and the next begins.
"""

import argparse
import json
import threading
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import NewTopic
from tests.harness.kafka import create
from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Cluster, Database
from tests.hunt.bank import BALANCE, MOST_WRONG, Bank
from tests.hunt.by_hand import Played, lasting, run_by_hand

ACCOUNTS = 50
TOPICS = {"accounts": 1, "transfers": 3, "marks": 1}
"""Table → partitions of its topic."""


class Auditor:
    """Reads the books as any consumer does; ``wrong`` has what is not as promised."""

    def __init__(self, kafka: Kafka) -> None:
        self._kafka = kafka
        self._balances: dict[int, int] = {}
        self._versions: dict[int, int] = {}
        self._rows: dict[str, Counter[object]] = {"transfers": Counter(), "marks": Counter()}
        self._transaction: int | None = None
        self.wrong: list[str] = []
        self.seen = self.audits = 0

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
            [
                TopicPartition(topic_of(table), number, OFFSET_BEGINNING)
                for table, partitions in TOPICS.items()
                for number in range(partitions)
            ]
        )
        while not stop.is_set():
            for message in consumer.consume(1000, 0.1):
                error, table = message.error(), str(message.topic()).rpartition(".")[2]
                if error is None:
                    self._take(table, json.loads(message.value() or b"null"))
                elif error.code() == KafkaError._PARTITION_EOF and table == "accounts":
                    self._sum("at the end of what can be read")
        consumer.close()

    def _take(self, table: str, event: dict[str, Any]) -> None:
        self.seen += 1
        row, xid = event["after"], event["source"]["txId"]
        if table != "accounts":
            self._rows[table][row["id"] if table == "transfers" else (row["teller"], row["n"])] += 1
            return
        if self._transaction not in (None, xid):
            self._sum(f"behind transaction {self._transaction}")
        self._transaction = xid
        account, version = row["id"], row["version"]
        if version != self._versions.get(account, version - 1) + 1:
            self._note(f"account {account}: version {version} after {self._versions.get(account)}")
        self._versions[account], self._balances[account] = version, row["balance"]

    def _sum(self, where: str) -> None:
        if len(self._balances) < ACCOUNTS:  # not all of the snapshot was read
            return
        self.audits += 1
        if sum(self._balances.values()) != ACCOUNTS * BALANCE:
            self._note(f"the sum is {sum(self._balances.values())} {where}")

    def _note(self, what: str) -> None:
        if len(self.wrong) < MOST_WRONG:
            self.wrong.append(what)

    def whole(self, moved: int, marks: int) -> bool:
        came = (len(self._rows["transfers"]), len(self._rows["marks"]))
        return came >= (moved, marks) and sum(self._versions.values()) >= 2 * moved

    def verdict(self, moved: int) -> list[str]:
        """Return what is not as promised, of ``moved`` transfers."""
        found = list(self.wrong)
        for table, rows in self._rows.items():
            twice = [row for row, count in rows.items() if count > 1]
            if twice:
                found.append(f"{len(twice)} {table} came more than once, such as {twice[0]}")
        if len(self._rows["transfers"]) != moved:
            found.append(f"{len(self._rows['transfers'])} transfers of {moved} came")
        if sum(self._versions.values()) != 2 * moved:
            found.append(f"{sum(self._versions.values())} changes of accounts, not {2 * moved}")
        return found


def topic_of(table: str) -> str:
    return f"bank.public.{table}"


def play_kafka(
    database: Database, kafka: Kafka, folder: Path, seed: int, **counts: Any
) -> tuple[Auditor, list[str]]:
    """Return the books at the end of it all, and what is not as promised."""
    create(kafka.bootstrap, *(NewTopic(topic_of(table), n) for table, n in TOPICS.items()))
    sink = {
        "type": "kafka",
        "bootstrap.servers": kafka.bootstrap,
        "delivery.guarantee": "exactly_once",
        "transactional.id": f"bank-{database.name}",
    }
    bank, books = Bank(database, kafka, folder, seed, sink), Auditor(kafka)
    bank.open(ACCOUNTS)
    moved = bank.play(books, **counts)
    return books, books.verdict(moved)


def play(given: argparse.Namespace, server: Cluster, folder: Path) -> Played:
    with lasting(Kafka.create(heap_mb=512, restarts=True)) as kafka:
        books, wrong = play_kafka(
            server.create_database("bank"), kafka, folder, given.seed,
            kills=given.kills, restarts=given.restarts, audits=given.audits, writers=4, pause=0.01,
        )  # fmt: skip
    return f"{given.kills} kills, {given.restarts} restarts, {books.audits:,} sums", wrong


if __name__ == "__main__":
    run_by_hand(
        __doc__ or "",
        {"kills": 50, "restarts": 5, "audits": 100_000},
        play,
        right="every change once, in order, every sum right",
    )
