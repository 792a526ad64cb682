"""Which batches of a loop are acknowledged."""

from waltap.pipeline.batches import BatchLedger


def test_those_before_one_that_is_done_with_by_itself_are_meant_too() -> None:
    """A commit may come in a read of its own: a batch without changes, which nobody has to acknowledge."""
    ledger = BatchLedger(10)
    ledger.enter(1)
    ledger.enter(2)
    last = ledger.enter(3)
    later = ledger.enter(4)
    ledger.acknowledge(last, earlier=False)
    assert ledger.promised == 0
    ledger.acknowledge(last, earlier=True)
    assert ledger.promised == 3
    assert not later.given
