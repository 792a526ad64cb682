"""Scenarios of fixed seeds: a real server, the real engine, and the judge. ``make hunt`` goes on."""

import sys

import pytest
from tests.harness.yugabyte.server import Yugabyte
from tests.hunt import machine
from tests.hunt.scenario import draw
from tests.hunt.soak import Soak
from tests.hunt.yugabyte_ranges import KilledRanges

SEEDS = (1, 3, 4, 5, 7, 10, 11, 12, 8_000_117, 8_000_143)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_found(seed, server, tmp_path):
    scenario = draw(seed)
    result = machine.run(scenario, server, sys.executable, keep=tmp_path / "kept")
    reported = "\n".join(str(finding)[:2000] for finding in result.findings)
    assert not result.findings, f"{reported}\nrepeat: python -m tests.hunt {seed}"


# --- the soak in its short form; ``make soak`` is the long one ----------------------------------------


def test_what_arrives_is_the_source(database, tmp_path):
    soak = Soak(database, tmp_path, 5, tables=6, rows=200)
    assert soak.play(5.0) == []
    assert soak.consumer.read > 6 * 200
    assert soak.transactions > 0


# --- kills of an engine with two slots in their short form; the program is the long one ---------------


def test_two_slots_in_an_engine_that_is_killed(yb_database, tmp_path):
    with Yugabyte(yb_database) as server:
        ranges = KilledRanges(server, tmp_path / "p", seed=6)
        assert ranges.play(3) == []
    assert ranges.lives == 4
    assert ranges.events > 0
