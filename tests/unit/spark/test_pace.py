"""A commit takes what fits into the time that it is given."""

from waltap_sinks.changelog import Manifest
from waltap_sinks.changelog.manifest import NOTHING, Mark, TableEntry
from waltap_spark.pace import ENTRY, LEAST, Pace

TABLE = TableEntry(
    schema="s", table="t", oid=1, identity="d", key=(), fingerprint="f", columns=(), rows=1
)


def manifest(number: int, rows: int, tables: int = 0) -> Manifest:
    mark = Mark(1, number, 0)
    return Manifest(
        version=1, mark=mark, previous=NOTHING, bucket="b", rows=rows, tables=(TABLE,) * tables
    )


def test_portions_keep_order_and_take_a_large_manifest_alone() -> None:
    steps = [manifest(number, rows) for number, rows in enumerate((3, 3, 3, 100, 1))]
    parts = Pace(5.0, 6).portions(steps)
    assert [[step.rows for step in part] for part in parts] == [[3, 3], [3], [100], [1]]
    assert list(Pace(5.0, 6).portions([])) == []


def test_a_slow_commit_makes_the_next_ones_of_the_same_backlog_smaller() -> None:
    steps = [manifest(number, 50_000) for number in range(40)]
    pace, seconds, sizes = Pace(5.0, 5_000_000), [], []
    for part in pace.portions(steps):
        rows = sum(step.rows for step in part)
        sizes.append(rows)
        seconds.append(rows / 20_000)  # this machine applies 20,000 rows a second
        pace.took(seconds[-1])
    assert sum(sizes) == 2_000_000
    assert seconds[0] > 20
    assert max(seconds[1:]) <= 5.0
    assert min(seconds[1:-1]) >= 2.5, "nor are they smaller than they need be"


def test_what_goes_fast_grows_up_to_the_bound_of_rows() -> None:
    steps = [manifest(number, 100_000) for number in range(200)]
    pace, sizes = Pace(5.0, 3_000_000), []
    for part in pace.portions(steps):
        sizes.append(sum(step.rows for step in part))
        pace.took(sizes[-1] / 2_000_000)
    assert max(sizes) == 3_000_000
    assert sizes.index(3_000_000) <= 4


def test_many_tables_count_for_more_than_their_rows() -> None:
    steps = [manifest(number, 300, tables=300) for number in range(20)]
    pace = Pace(5.0, 5_000_000)
    pace.limit = 3 * (300 + 300 * ENTRY)
    assert {len(part) for part in pace.portions(steps)} == {3, 2}


def test_a_small_commit_that_was_slow_by_chance_does_not_stop_everything() -> None:
    pace = Pace(5.0, 5_000_000)
    for part in pace.portions([manifest(1, 1)]):
        assert part
        pace.took(60.0)
    assert pace.limit == LEAST
