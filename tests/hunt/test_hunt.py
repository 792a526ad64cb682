"""Scenarios of fixed seeds: a real server, the real engine, and the judge. ``make hunt`` goes on."""

import sys
from pathlib import Path

import pytest
from tests.harness.servers.postgres import Server
from tests.hunt import machine
from tests.hunt.scenario import draw

SEEDS = (1, 3, 4, 5, 7, 10, 11, 12, 8_000_117, 8_000_143)


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_found(seed: int, server: Server, tmp_path: Path) -> None:
    scenario = draw(seed)
    result = machine.run(scenario, server, sys.executable, keep=tmp_path / "kept")
    reported = "\n".join(str(finding)[:2000] for finding in result.findings)
    assert not result.findings, f"{reported}\nrepeat: python -m tests.hunt {seed}"
