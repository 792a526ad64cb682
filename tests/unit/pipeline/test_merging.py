"""Transactions of several partitions in the order of their commits."""

from hypothesis import given
from hypothesis import strategies as st

from waltap.pipeline.partition_merge import PartitionMerge
from waltap.transactions.transaction import TransactionPart


def part(lsn: int, *, complete: bool = True) -> TransactionPart:
    return TransactionPart(
        xid=1,
        begin_lsn=lsn,
        commit_lsn=lsn,
        commit_ts=0,
        end_lsn=lsn + 1,
        previous_end_lsn=None,
        changes=[],
        complete=complete,
    )


def lsns(taken: list[tuple[str, list[TransactionPart]]]) -> list[int]:
    return [each.commit_lsn for _, parts in taken for each in parts]


def test_nothing_goes_on_before_every_partition_was_heard() -> None:
    merge = PartitionMerge(["a", "b"], quiet_s=1.0, most=100, now=0.0)
    merge.add("a", [part(10), part(30)], 0.0)
    assert merge.take(0.5) == []
    merge.add("b", [part(20)], 0.5)
    assert lsns(merge.take(0.5)) == [10, 20]
    assert lsns(merge.take(1.4)) == []
    assert lsns(merge.take(1.6)) == [30]  # b has been silent for long enough
    assert not merge


def test_parts_of_one_transaction_stay_together() -> None:
    merge = PartitionMerge(["a", "b"], quiet_s=1.0, most=100, now=0.0)
    merge.add("a", [part(10, complete=False)], 0.0)
    merge.add("b", [part(9), part(20)], 0.0)
    assert lsns(merge.take(0.0)) == [9, 10]
    assert merge.take(9.0) == []  # its end has not come
    merge.add("a", [part(10)], 9.0)
    assert lsns(merge.take(10.5)) == [10, 20]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 50)), max_size=30))
def test_all_comes_out_in_the_order_of_commits(found: list[tuple[str, int]]) -> None:
    merge = PartitionMerge(["a", "b"], quiet_s=1.0, most=100, now=0.0)
    for name in "ab":
        merge.add(name, [part(lsn) for each, lsn in sorted(found) if each == name], 0.0)
    assert lsns(merge.take(2.0)) == sorted(lsn for _, lsn in found)
