"""Engine and target are killed: whoever reads the target finds every sum right (`tests.hunt.sql_bank`)."""

import os
import time
from pathlib import Path

from tests.harness.servers.postgres import Cluster, Database
from tests.hunt.sql_bank import Bank, verdict

SEED = int(os.environ.get("WALTAP_TEST_SEED") or time.time_ns() % 1_000_000)


def test_a_bank_keeps_its_sum_over_kills_of_engine_and_target(
    database: Database, private_server: Cluster, tmp_path: Path
) -> None:
    auditor = Bank(database, private_server, tmp_path, SEED).play(
        kills=3, reads=50, writers=4, pause=0.1
    )
    assert verdict(database, private_server, auditor) == [], f"WALTAP_TEST_SEED={SEED}"
    assert auditor.states > 3
