"""The soak in its short form; ``make soak`` is the long one."""

from pathlib import Path

from tests.harness.servers.postgres import Database
from tests.hunt.soak import Soak


def test_what_arrives_is_the_source(database: Database, tmp_path: Path) -> None:
    soak = Soak(database, tmp_path, 5, tables=6, rows=200)
    assert soak.play(5.0) == []
    assert soak.consumer.read > 6 * 200
    assert soak.transactions > 0
