"""What the engine does with what a sink refuses: the real engine, between a source and a destination in
memory."""

from collections.abc import Callable

import msgspec
import pytest
from tests.harness.simulated import Gone, new, raising

from waltap.changes.decode.message import Insert
from waltap.changes.transactions.transaction import SnapshotRows, TransactionPart
from waltap.errors import SinkError
from waltap.ports.sink import Batch, RecordsRefused, RefusedEvent
from waltap.services.dead_letters.store import DeadLetterStore, DeadLettersUnusable
from waltap_testing.workload import ITEMS

__all__ = ["new"]


class TooLong(SinkError):
    code = "WT-5997"
    remedy = "Widen {column}."


class Killed(BaseException):
    """As a signal would: nothing is tidied up."""


@pytest.fixture
def store(tmp_path) -> DeadLetterStore:
    return DeadLetterStore(tmp_path / "state" / "simulated" / "dead-letters")


def refusing(*serials: int) -> Callable[[Batch], None]:
    """Return a destination's refusal of these rows."""

    def before_write(batch: Batch) -> None:
        error, refused = TooLong("too long", column="name"), list[RefusedEvent]()
        for part in batch.parts:
            if isinstance(part, TransactionPart):
                refused += [
                    RefusedEvent(change=c, error=error)
                    for c in part.changes
                    if isinstance(c, Insert) and int(str(c.new[1])) in serials
                ]
            elif isinstance(part, SnapshotRows):
                refused += [
                    RefusedEvent(rows=part, index=n, error=error)
                    for n, row in enumerate(part.rows)
                    if int(str(row[1])) in serials
                ]
        if refused:
            raise RecordsRefused(refused)

    return before_write


def test_by_default_the_pipeline_stops_and_says_which_was_the_first_event(new, store):
    pipeline = new()
    pipeline.source.insert(at=1.0, rows=2)
    pipeline.source.insert(at=2.0, rows=3)
    pipeline.destination.before_write = refusing(4, 5)
    with pytest.raises(TooLong, match=r"too long \(c of public.items, 1/[0-9A-F]+, change 1\)"):
        pipeline.run(stop_at=10.0)
    assert pipeline.destination.durable == [1, 2]
    assert store.all() == []
    pipeline.destination.before_write = lambda _batch: None
    pipeline.run(stop_at=20.0)
    assert pipeline.destination.durable == [1, 2, 3, 4, 5]


KEYLESS = msgspec.structs.replace(ITEMS, primary_key=())
MANY = list(range(1, 251))
TOLERATED = {
    "of transactions": (ITEMS, [], [5, 5], {2, 4, 9}, [1, 3, 5, 6, 7, 8, 10], [("c", 1), ("c", 3), ("c", 3)]),
    "of a snapshot": (ITEMS, MANY, [], {7, 200}, [n for n in MANY if n not in {7, 200}], [("r", 0), ("r", 0)]),
    "equal rows without a key": (KEYLESS, [7, 8, 7], [], {7}, [8], [("r", 0), ("r", 1)]),
}  # fmt: skip
"""A table, its rows before the start, how many come by each transaction, which of all are refused, which are
durable, and of each letter its operation and index."""


@pytest.mark.parametrize("policy", ["dead_letter", "all"])
@pytest.mark.parametrize("case", TOLERATED)
def test_what_is_tolerated_is_left_out_or_a_letter_and_all_others_come_in_order(
    new, store, case, policy
):
    table, before, inserts, refused, durable, letters = TOLERATED[case]
    pipeline = new(errors_tolerance=policy)
    pipeline.source.tables = {table: [(str(n), str(n), "x") for n in before]}
    for at, rows in enumerate(inserts, 1):
        pipeline.source.insert(at=float(at), rows=rows)
    pipeline.destination.before_write = refusing(*refused)
    status = pipeline.run(stop_at=10.0).status()
    assert pipeline.destination.durable == durable
    kept = store.all()
    assert (status.left_out, status.dead_letters) == (len(letters), len(kept))
    assert status.events == len(durable)
    if policy == "all":
        assert kept == []
        return
    assert [(each.op, each.location.index) for each in kept] == letters
    assert len({each.id for each in kept}) == len(kept)
    assert {(e.code, e.reason, e.table, e.remedy, e.attempts) for e in kept} == {
        ("WT-5997", "too long", "public.items", "Widen name.", 1)
    }
    offset = pipeline.store.load()
    assert offset.sole.position.end_lsn == pipeline.source.wal_end or not inserts


def test_what_is_no_records_fault_is_never_tolerated(new, store):
    pipeline = new(errors_tolerance="dead_letter", errors_max_retries=0)
    pipeline.source.insert(at=1.0, rows=3)
    pipeline.destination.before_write = raising(Gone("the link broke"))
    with pytest.raises(Gone):
        pipeline.run(stop_at=10.0)
    assert store.all() == []


@pytest.mark.parametrize("exactly_once", [False, True])
def test_killed_between_a_letter_and_the_rest_of_its_batch(new, store, exactly_once):
    """The dead letter is durable before the position moves: it is one dead letter, and nothing else is missing."""
    pipeline = new(errors_tolerance="dead_letter")
    pipeline.destination.exactly_once = exactly_once
    pipeline.source.insert(at=1.0, rows=4)
    refuse, calls = refusing(3), 0

    def before_write(batch: Batch) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            assert [each.location.index for each in store.all()] == [2]
            raise Killed
        refuse(batch)

    pipeline.destination.before_write = before_write
    with pytest.raises(Killed):
        pipeline.run(stop_at=10.0)
    assert pipeline.destination.durable == []
    pipeline.run(stop_at=20.0)
    assert pipeline.destination.durable == [1, 2, 4]
    (dead_letter,) = store.all()
    assert dead_letter.attempts == 2


def test_a_store_that_fails_stops_the_pipeline_before_the_position_moves(new, tmp_path):
    pipeline = new(errors_tolerance="dead_letter")
    folder = tmp_path / "state" / "simulated"
    folder.mkdir(parents=True)
    (folder / "dead-letters").write_text("in the way")
    pipeline.source.insert(at=1.0, rows=3)
    pipeline.destination.before_write = refusing(2)
    with pytest.raises(DeadLettersUnusable):
        pipeline.run(stop_at=10.0)
    assert pipeline.destination.durable == []


def test_notifications_come_at_most_every_ten_seconds(new):
    pipeline = new(errors_tolerance="dead_letter")
    for at in range(1, 31):
        pipeline.source.insert(at=float(at), rows=2)
    pipeline.destination.before_write = refusing(*range(1, 61, 2))
    engine = pipeline.engine()
    reported: list[dict[str, str]] = []
    engine.on_notification(
        lambda each: (
            reported.append(each.additional_data or {})
            if each.aggregate_type == "Dead Letter"
            else None
        )
    )
    pipeline.clock.at(60.0, engine.stop)
    engine.run()
    assert 3 <= len(reported) <= 4
    assert reported[0]["code"] == "WT-5997"
    assert sum(int(each["count"]) for each in reported) <= 30
    assert engine.status().dead_letters == 30
