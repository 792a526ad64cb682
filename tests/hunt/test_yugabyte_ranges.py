"""Kills of an engine with two slots in their short form; the program is the long one."""

from pathlib import Path

from tests.harness.servers.postgres import Database
from tests.harness.yugabyte.server import Yugabyte
from tests.hunt.yugabyte_ranges import KilledRanges


def test_two_slots_in_an_engine_that_is_killed(yb_database: Database, tmp_path: Path) -> None:
    with Yugabyte(yb_database) as server:
        ranges = KilledRanges(server, tmp_path / "p", seed=6)
        assert ranges.play(3) == []
    assert ranges.lives == 4
    assert ranges.events > 0
