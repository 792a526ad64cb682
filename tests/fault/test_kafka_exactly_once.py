"""Engines are killed and the broker restarts: a consumer sees every change once (`tests.hunt.kafka_bank`)."""

import os
import time
from pathlib import Path

from tests.harness.servers.kafka import Kafka
from tests.harness.servers.postgres import Database
from tests.hunt.kafka_bank import Bank, verdict

SEED = int(os.environ.get("WALTAP_TEST_SEED") or time.time_ns() % 1_000_000)


def test_a_bank_keeps_its_sum_over_kills_and_restarts(
    database: Database, private_kafka: Kafka, tmp_path: Path
) -> None:
    books = Bank(database, private_kafka, tmp_path, SEED).play(rows=5_000, kills=2, restarts=1)
    ((moved,),) = database.execute("SELECT count(*) FROM transfers")
    assert verdict(books, moved) == [], f"WALTAP_TEST_SEED={SEED}"
    assert books.sums > 10
