"""Run the tests in an order that a seed makes: `pytest -p tests.harness.tiers.random_order --order-seed 7`.

Tests of one module stay together, since they share its fixtures; modules, and tests within one, are shuffled.
"""

import random

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option with the seed."""
    parser.addoption("--order-seed", type=int, default=0, help="seed of the order of tests")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle modules, and the tests of each."""
    chance = random.Random(config.getoption("--order-seed"))
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.nodeid.partition("::")[0], []).append(item)
    names = sorted(modules)
    chance.shuffle(names)
    for name in names:
        chance.shuffle(modules[name])
    items[:] = [item for name in names for item in modules[name]]
