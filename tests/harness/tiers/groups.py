"""Which tests one worker runs one after the other, for `pytest --dist loadgroup`.

A module is a group, since its tests share fixtures; of a conformance suite a class is, since suites are long.
Tests of a heavy service are groups by that service: a worker has its Spark session or its broker, the others
never start one.
"""

import zlib
from collections.abc import Sequence
from typing import Final

import pytest

__all__ = ["add_groups"]

SPARK: Final = frozenset({"spark", "delta", "iceberg", "spark_connect", "spark_of_topics"})
KAFKA: Final = frozenset({"kafka", "registry"})
SPARK_GROUPS: Final = 2
"""A session needs a core while it works. More of them would start and warm up in vain."""


def group_of(item: pytest.Item) -> str:
    """Return the name of the group that a test is of."""
    names = set(getattr(item, "fixturenames", ()))
    module, _, rest = item.nodeid.partition("::")
    if names & SPARK:
        return f"spark {zlib.crc32(module.encode()) % SPARK_GROUPS}"
    if names & KAFKA:
        return "kafka"
    if module.startswith("tests/conformance/"):
        return f"{module}::{rest.partition('::')[0].partition('[')[0]}"
    return module


def add_groups(items: Sequence[pytest.Item]) -> None:
    """Put each test into its group."""
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group_of(item)))
