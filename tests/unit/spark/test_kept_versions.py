"""Which versions of a shared target must stay."""

import math

from waltap_spark.formats.kept_versions import TableVersionInfo, needed_since
from waltap_spark.formats.notes import CommitNote


def version(number: int, output: str = "", table: str = "t", stands: int = -1) -> TableVersionInfo:
    note = CommitNote(waltap=output, step=1, table=table, stands=stands) if output else None
    return TableVersionInfo(number, number * 1000, note)


def since(
    *versions: TableVersionInfo, named: tuple[int, ...] = (), silent_ms: float = 0.0
) -> float:
    return needed_since(reversed(versions), named, "own", silent_ms)


def test_what_the_own_tables_stand_at_and_what_came_after_it() -> None:
    assert since(version(1), version(2, "own"), version(3, "own"), named=(2, 3)) == 2000
    assert since(version(1), version(2, "own")) == math.inf


def test_what_the_last_commit_of_another_output_names_and_its_steps_since() -> None:
    """It died after step 4: its successor begins at 2, and looks for steps behind that."""
    taken = version(4, "other", stands=2)
    assert (
        since(version(1), version(2, "other", stands=1), version(3, "own"), taken, named=(3,))
        == 2000
    )


def test_each_table_of_another_output_has_a_version_of_its_own() -> None:
    one, two = version(5, "other", "one", stands=4), version(6, "other", "two", stands=2)
    assert since(*map(version, range(1, 5)), one, two) == 2000


def test_a_table_of_which_nothing_was_committed_needs_all_its_steps() -> None:
    first, second = version(2, "other"), version(4, "other")
    assert since(version(1), first, version(3, "own"), second, version(5, "own")) == 2000


def test_who_has_been_silent_for_long_is_not_waited_for() -> None:
    there = version(1), version(2, "other", stands=1), version(3, "own")
    assert since(*there, named=(3,), silent_ms=2000.0) == 3000
    assert since(*there, named=(3,), silent_ms=1999.0) == 1000


def test_a_version_that_is_gone_keeps_what_came_after_it() -> None:
    assert since(version(3, "own"), version(4, "other", stands=1), version(5, "own")) == 4000
