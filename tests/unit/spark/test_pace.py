"""A commit takes what fits into the time that it is given."""

from waltap_sinks.changelog import Manifest
from waltap_sinks.changelog.manifest import NOTHING, LogPosition, TableEntry
from waltap_spark.batch_size import ENTRY, LEAST, SCHEMA, AdaptiveBatchSize

TABLE = TableEntry(
    schema="s", table="t", oid=1, identity="d", key=(), fingerprint="f", columns=(), rows=1
)


def manifest(number: int, rows: int, tables: int = 0) -> Manifest:
    mark = LogPosition(1, number, 0)
    return Manifest(
        version=1, mark=mark, previous=NOTHING, bucket="b", rows=rows, tables=(TABLE,) * tables
    )


def test_portions_keep_order_and_take_a_large_manifest_alone() -> None:
    steps = [manifest(number, rows) for number, rows in enumerate((3, 3, 3, 100, 1))]
    parts = AdaptiveBatchSize(5.0, 6).portions(steps)
    assert [[step.rows for step in part] for part in parts] == [[3, 3], [3], [100], [1]]
    assert list(AdaptiveBatchSize(5.0, 6).portions([])) == []


def test_a_slow_machine_takes_commits_that_fit_its_time() -> None:
    steps = [manifest(number, 50_000) for number in range(40)]
    pace, seconds, sizes = AdaptiveBatchSize(5.0, 5_000_000), [], []
    for part in pace.portions(steps):
        rows = sum(step.rows for step in part)
        sizes.append(rows)
        seconds.append(rows / 20_000)  # this machine applies 20,000 rows a second
        pace.took(seconds[-1])
    assert sum(sizes) == 2_000_000
    assert max(seconds) <= 5.0
    assert min(seconds[1:-1]) >= 2.5, "nor are they smaller than they need be"


def test_what_goes_fast_grows_up_to_the_bound_of_rows() -> None:
    steps = [manifest(number, 100_000) for number in range(200)]
    pace, sizes = AdaptiveBatchSize(5.0, 3_000_000), []
    for part in pace.portions(steps):
        sizes.append(sum(step.rows for step in part))
        pace.took(sizes[-1] / 2_000_000)
    assert max(sizes) == 3_000_000
    assert sizes.index(3_000_000) <= 4


def test_many_tables_count_for_more_than_their_rows() -> None:
    steps = [manifest(number, 300, tables=300) for number in range(20)]
    pace = AdaptiveBatchSize(5.0, 5_000_000)
    pace.limit = 3 * (300 + 300 * ENTRY)
    assert {len(part) for part in pace.portions(steps)} == {3, 2}


def test_a_small_commit_that_was_slow_by_chance_does_not_stop_everything() -> None:
    pace = AdaptiveBatchSize(5.0, 5_000_000)
    for _ in range(9):
        for part in pace.portions([manifest(1, 1)]):
            assert part
            pace.took(60.0)
    assert LEAST <= pace.limit <= 2 * LEAST


def test_the_first_commit_is_small_whatever_waits() -> None:
    """A driver that is killed every half minute gets somewhere, and tries no more each time."""
    steps = [manifest(number, 300, tables=20) for number in range(1_000)]
    first = next(iter(AdaptiveBatchSize(5.0, 5_000_000).portions(steps)))
    assert 1 < len(first) < 50


def test_a_commit_that_costs_much_as_such_takes_more_and_keeps_up() -> None:
    """Twenty tables for eight seconds, whatever they have; each second brings a manifest of all of them."""
    pace, clock, done, slowest = AdaptiveBatchSize(5.0, 5_000_000), 200.0, 0, 0.0
    lags = []
    for _ in range(40):
        waiting = [manifest(number, 300, tables=20) for number in range(done, int(clock))]
        for part in pace.portions(waiting):
            seconds = 8.0 + sum(step.rows + ENTRY * 20 for step in part) / 100_000
            pace.took(seconds)
            clock, done, slowest = clock + seconds, done + len(part), max(slowest, seconds)
        lags.append(clock - done)
    assert lags[-1] < 40, "the backlog of 200 seconds is gone, and none came since"
    assert slowest <= 25


def test_a_cost_that_grows_faster_than_the_rows_makes_commits_smaller() -> None:
    steps = [manifest(number, 10_000) for number in range(400)]
    pace, seconds = AdaptiveBatchSize(5.0, 5_000_000), []
    for part in pace.portions(steps):
        weight = sum(step.rows for step in part)
        seconds.append((weight / 100_000) ** 2)
        pace.took(seconds[-1])
    assert max(seconds[5:]) <= 6.0


def test_other_schemas_count_for_more_than_their_rows() -> None:
    from msgspec.structs import replace

    def step(number: int, fingerprint: str) -> Manifest:
        return replace(manifest(number, 1), tables=(replace(TABLE, fingerprint=fingerprint),))

    pace = AdaptiveBatchSize(5.0, 5_000_000)
    pace.limit = 2 * SCHEMA + 9 * (ENTRY + 1)
    same = [step(number, "one") for number in range(9)]
    assert len(list(pace.portions(same))) == 1
    other = [step(number, f"{number}") for number in range(9)]
    assert {len(part) for part in pace.portions(other)} == {3}


def test_nothing_is_learnt_from_tables_that_tasks_read_of_the_source() -> None:
    """Minutes for a manifest without rows say nothing of what a commit of changes costs."""
    from msgspec.structs import replace

    pace, clock = AdaptiveBatchSize(5.0, 5_000_000), []
    read = [
        replace(manifest(number, 0), tables=(replace(TABLE, elsewhere="a"),)) for number in (1, 2)
    ]
    for part in pace.portions([*read, *(manifest(number, 50_000) for number in range(3, 200))]):
        elsewhere = bool(part[0].elsewhere)
        clock.append(300.0 if elsewhere else sum(step.rows for step in part) / 20_000)
        pace.took(clock[-1])
    assert clock[:2] == [300.0, 300.0]
    assert max(clock[2:]) <= 5.0
