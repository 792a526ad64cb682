"""Which tests one worker runs one after the other, for `pytest --dist loadgroup`.

A module is a group, since its tests share fixtures; of a conformance suite a class is, since suites are long.
Tests of a heavy service are groups by that service: a worker has its Spark session or its broker, the others
never start one. The longest groups are first, and those of short tests last, so that no worker is alone at the end.
"""

import zlib
from collections import Counter
from typing import Final

import pytest

SPARK: Final = frozenset({"spark", "delta", "iceberg", "spark_connect", "spark_of_topics"})
KAFKA: Final = frozenset({"kafka", "registry"})
SPLIT: Final = {
    "tests/differential/test_recorded_events.py": 3,
    "tests/integration/test_destination_lost.py": 2,
    "tests/integration/test_remedies_executed.py": 2,
}
"""Modules of several groups: their tests share nothing and mostly wait."""
FIRST: Final = (
    "spark",
    "kafka",
    *SPLIT,
    "tests/fault/",
    "tests/integration/",
    "tests/differential/",
)
LAST: Final = "tests/unit/"
"""Groups that begin first, since they take or wait longest, and last: their tests are short, and compute."""


def group_of(item: pytest.Item) -> str:
    """Return the name of the group that a test is of."""
    names = set(getattr(item, "fixturenames", ()))
    module, _, rest = item.nodeid.partition("::")
    if names & SPARK:
        # the other session never loads Delta Lake, and a third one would start and warm up in vain
        return "spark, Delta Lake" if "delta" in names else "spark"
    if names & KAFKA:
        return "kafka"
    if module.startswith("tests/conformance/"):
        return f"{module}::{rest.partition('::')[0].partition('[')[0]}"
    if parts := SPLIT.get(module):
        return f"{module} {zlib.crc32(rest.encode()) % parts}"
    return module


def add_groups(items: list[pytest.Item]) -> None:
    """Put each test into its group, and the longest groups first (`--no-loadscope-reorder`)."""
    groups = [group_of(item) for item in items]
    sizes = Counter(groups)

    def order(at: int) -> tuple[int, int, bool, int]:
        group = groups[at]
        between = len(FIRST) + group.startswith(LAST)
        rank = next((i for i, name in enumerate(FIRST) if group.startswith(name)), between)
        # a kill's own processes and the start of the shared session are not waited for in one set-up
        return (rank, -sizes[group], items[at].nodeid.startswith("tests/fault/"), at)

    for item, group in zip(items, groups, strict=True):
        item.add_marker(pytest.mark.xdist_group(group))
    items[:] = [items[at] for at in sorted(range(len(items)), key=order)]
