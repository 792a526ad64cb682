"""What cannot be made is left out, and what is made again is counted once."""

from pathlib import Path

import msgspec
import pytest

from waltap.dead_letters.handling import FailureHandling, FailurePolicy
from waltap.dead_letters.poison_events import PoisonEventHandler
from waltap.dead_letters.queue import DeadLetterQueue
from waltap.dead_letters.store import LetterStore
from waltap.decode.message import Insert
from waltap.errors import RecordError
from waltap.format.record import Record
from waltap.source.position import Position
from waltap.transactions.order import TransactionOrder
from waltap.transactions.transaction import Batch, TransactionPart
from waltap_testing.simulation import VirtualClock
from waltap_testing.workload import ITEMS


class Counted:
    """A format that numbers the events of a transaction, and cannot make those with the serials ``bad``."""

    def __init__(self, bad: set[int]) -> None:
        self.order, self._bad = TransactionOrder(), bad

    def __call__(self, given: Batch) -> Batch:
        records = []
        for part in given.parts:
            assert isinstance(part, TransactionPart)
            self.order.enter(part)
            for change in part.changes:
                assert isinstance(change, Insert)
                place, _ = self.order.next(ITEMS.name)
                if int(str(change.new[1])) in self._bad:
                    raise RecordError("that one")
                records.append(Record("t", None, str(place).encode()))
        return msgspec.structs.replace(given, records=records)


def batch(*parts: TransactionPart) -> Batch:
    events = sum(len(part.changes) for part in parts)
    return Batch(parts=list(parts), position=Position(0x200), events=events)


@pytest.mark.parametrize("bad", [{3}, {7}, {4, 5}, {3, 4, 5, 6, 7}])
@pytest.mark.parametrize("policy", [FailureHandling.SKIP, FailureHandling.DEAD_LETTER])
def test_what_is_made_again_is_counted_once(
    tmp_path: Path, policy: FailureHandling, bad: set[int]
) -> None:
    """In the middle of a transaction, too: its first part was counted with the batch before."""
    whole = TransactionPart(
        xid=7,
        begin_lsn=0x100,
        commit_lsn=0x180,
        commit_ts=0,
        end_lsn=0x200,
        changes=[Insert(ITEMS, n, (str(n), str(n), "x")) for n in range(8)],
    )
    first, rest = whole.split(3)
    make = Counted(bad)
    desk = DeadLetterQueue(
        LetterStore(tmp_path), VirtualClock(), describe=lambda r: r, form=lambda: None
    )
    undeliverable = PoisonEventHandler(
        FailurePolicy(events=policy, records=policy), "", make.order, desk
    )
    undeliverable.made(batch(first), make)
    made = undeliverable.made(batch(rest), make)
    kept = 5 - len(bad)
    assert make.order.total == 3 + kept
    assert make.order.counts() == {ITEMS.name: 3 + kept}
    assert [int(r.value or b"") for r in made.records or ()] == list(range(4, 4 + kept))
