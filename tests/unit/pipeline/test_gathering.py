"""Changes that wait for more: no longer than asked, and no more than fit."""

from waltap.decode.message import Insert
from waltap.decode.relation import Relation
from waltap.pipeline.part_batcher import PartBatcher
from waltap.transactions.transaction import TransactionPart

RELATION = Relation(oid=1, schema="public", table="t", columns=())


def part(count: int, *, complete: bool = True) -> TransactionPart:
    changes = [Insert(RELATION, 1, ())] * count
    return TransactionPart(
        xid=1, begin_lsn=1, commit_lsn=2, commit_ts=0, changes=list(changes), complete=complete
    )


def test_without_linger_everything_is_due_at_once() -> None:
    gathered = PartBatcher(0.0, 100)
    assert not gathered.due(5.0)
    gathered.add([part(1)], 5.0)
    assert gathered.due(5.0)
    assert len(gathered.take()) == 1
    assert not gathered


def test_the_wait_counts_from_the_first_part() -> None:
    gathered = PartBatcher(1.0, 100)
    gathered.add([part(1)], 5.0)
    gathered.add([part(1)], 5.9)
    assert not gathered.due(5.99)
    assert gathered.wait(0.25, 5.9) < 0.11
    assert gathered.wait(0.05, 5.9) == 0.05
    assert gathered.due(6.0)
    assert len(gathered.take()) == 2
    gathered.add([part(1)], 7.0)
    assert not gathered.due(7.9)


def test_a_full_batch_waits_no_longer() -> None:
    gathered = PartBatcher(60.0, 100)
    gathered.add([part(60)], 0.0)
    assert not gathered.due(0.0)
    gathered.add([part(40)], 0.0)
    assert gathered.due(0.0)
    gathered.take()
    gathered.add([part(60)], 0.0)
    assert not gathered.due(0.0)


def test_nothing_gathered_means_the_longest_wait() -> None:
    assert PartBatcher(1.0, 10).wait(0.25, 99.0) == 0.25


def test_what_came_of_a_transaction_waits_for_its_end_where_that_is_wanted() -> None:
    gathered = PartBatcher(0.0, 100, whole=True)
    gathered.add([part(1), part(2), part(3, complete=False)], 5.0)
    assert gathered.due(5.0)
    assert [len(each.changes) for each in gathered.take()] == [1, 2]
    assert gathered
    assert not gathered.due(9.0)
    assert gathered.wait(0.25, 9.0) == 0.25, "nothing to hurry for"
    gathered.add([part(4, complete=False)], 9.0)
    assert not gathered.due(9.0)
    gathered.add([part(5), part(6, complete=False)], 9.0)
    assert [len(each.changes) for each in gathered.take()] == [3, 4, 5]
    assert [len(each.changes) for each in gathered.take_all()] == [6]
    assert not gathered
    assert gathered.changes == 0


def test_a_transaction_that_fills_a_batch_does_not_wait_for_its_end() -> None:
    gathered = PartBatcher(0.0, 100, whole=True)
    gathered.add([part(1), part(60, complete=False)], 5.0)
    assert [len(each.changes) for each in gathered.take()] == [1]
    gathered.add([part(40, complete=False)], 5.0)
    assert gathered.due(5.0)
    assert [len(each.changes) for each in gathered.take()] == [60, 40]
    assert gathered.changes == 0


def test_whole_transactions_linger_too() -> None:
    gathered = PartBatcher(1.0, 100, whole=True)
    gathered.add([part(1, complete=False)], 0.0)
    gathered.add([part(1)], 5.0)
    assert not gathered.due(5.9)
    assert gathered.due(6.0)
