"""Run the tests in an order that a seed makes: `pytest -p tests.harness.tiers.random_order --order-seed 7`.

Tests of one module stay together, since they share its fixtures; modules, and tests within one, are shuffled.
A test that leaves the process changed fails, since the next one may depend on it.
"""

import logging
import os
import random
from collections.abc import Iterator

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


STATE = pytest.StashKey[dict[str, object]]()


def process_state() -> dict[str, object]:
    """Return levels of loggers, by name, and other state that all tests of a process share."""
    mask = os.umask(0)
    os.umask(mask)
    loggers = {
        name: each.level
        for name, each in list(logging.root.manager.loggerDict.items())
        if name.startswith("waltap") and isinstance(each, logging.Logger) and each.level
    }
    return {**loggers, "root": logging.root.level, "umask": mask, "folder": os.getcwd()}


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Keep the state before a test."""
    item.stash[STATE] = process_state()
    yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Compare the state after a test."""
    yield
    before, after = item.stash[STATE], process_state()
    left = {name for name in before | after if before.get(name) != after.get(name)}
    if left:
        pytest.fail(f"changed by the test, and not put back: {', '.join(sorted(left))}")
