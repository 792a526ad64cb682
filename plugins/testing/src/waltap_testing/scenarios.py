"""Small streams that every sink must deliver, by name."""

from collections.abc import Callable, Mapping

from waltap_testing.workload import ITEMS, NOTES, ScriptedWorkload

__all__ = ["SCENARIOS", "large_transaction", "mixed"]


def large_transaction() -> ScriptedWorkload:
    """Return three transactions; the second has eight changes."""
    workload = ScriptedWorkload()
    workload.insert(ITEMS, 1, "alone")
    workload.commit()
    for number in range(2, 10):
        workload.insert(ITEMS, number, "together")
    workload.commit()
    workload.insert(ITEMS, 20, "after")
    workload.commit()
    return workload


def mixed(*, truncate: bool) -> ScriptedWorkload:
    """Return seven transactions with every operation.

    The fourth is larger than the batches of the suites, so it arrives in several.
    """
    workload = ScriptedWorkload()
    for number in range(1, 4):
        workload.insert(ITEMS, number, f"item {number}")
    workload.commit()
    workload.insert(NOTES, 1, "first note")
    workload.update(ITEMS, 1, "item 1 again")
    workload.commit()
    workload.delete(ITEMS, 2)
    workload.commit()
    for number in range(10, 20):
        workload.insert(ITEMS if number % 3 else NOTES, number, "in one transaction")
    workload.update(ITEMS, 1, "item 1 for the last time")
    workload.commit()
    if truncate:
        workload.truncate(NOTES)
    workload.insert(NOTES, 30, "last but two")
    workload.commit()
    workload.delete(ITEMS, 3)
    workload.insert(ITEMS, 31, "last but one")
    workload.commit()
    workload.insert(NOTES, 32, "last")
    workload.commit()
    return workload


def one_create() -> ScriptedWorkload:
    workload = ScriptedWorkload()
    workload.insert(ITEMS, 1, "one")
    workload.commit()
    return workload


def delete_then_tombstone() -> ScriptedWorkload:
    workload = one_create()
    workload.delete(ITEMS, 1)
    workload.commit()
    return workload


def one_row_many_times() -> ScriptedWorkload:
    workload = one_create()
    for number in range(60):
        workload.update(ITEMS, 1, f"version {number}")
        # Several changes of one row within a transaction, and across transactions.
        if number % 7 == 0:
            workload.commit()
    workload.commit()
    return workload


def larger_than_buffers() -> ScriptedWorkload:
    workload = ScriptedWorkload()
    for number in range(1, 3_001):
        # Rows of different lengths, so that buffers do not end with a row.
        workload.insert(ITEMS, number, "x" * (number % 300))
        if number % 400 == 0:
            workload.commit()
    workload.commit()
    return workload


def two_tables() -> ScriptedWorkload:
    workload = ScriptedWorkload()
    for number in range(1, 40):
        workload.insert(ITEMS if number % 2 else NOTES, number, "turn by turn")
    workload.commit()
    return workload


SCENARIOS: Mapping[str, Callable[[], ScriptedWorkload]] = {
    "one create": one_create,
    "delete then tombstone": delete_then_tombstone,
    "one row many times": one_row_many_times,
    "larger than buffers": larger_than_buffers,
    "two tables": two_tables,
    "transaction larger than a batch": large_transaction,
    "mixed": lambda: mixed(truncate=False),
    "truncate": lambda: mixed(truncate=True),
}
