"""Engines are killed, and the server that they deliver to: whoever reads it finds every change once, and every sum
right (`tests.hunt.bank`)."""

from tests.fault.lives import SEED
from tests.hunt.kafka_bank import play_kafka
from tests.hunt.sql_bank import play_sql


def test_a_bank_in_kafka_keeps_its_sum_over_kills_and_restarts(database, private_kafka, tmp_path):
    counts = {"kills": 1, "restarts": 1, "audits": 50, "writers": 2}
    _, wrong = play_kafka(database, private_kafka, tmp_path, SEED, **counts, pause=0.02)
    assert wrong == [], f"WALTAP_TEST_SEED={SEED}"


def test_a_bank_in_postgresql_keeps_its_sum_over_kills_and_restarts(
    database, private_server, tmp_path
):
    counts = {"kills": 2, "restarts": 2, "audits": 50, "writers": 4, "accounts": 200}
    auditor, wrong = play_sql(database, private_server, tmp_path, SEED, **counts, pause=0.1)
    assert wrong == [], f"WALTAP_TEST_SEED={SEED}"
    assert auditor.seen > 3
