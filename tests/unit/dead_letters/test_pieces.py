"""Finding the events that fail: by trying pieces, in order, and taking them out without moving others."""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.simulated import raising

from waltap.changes.decode.message import Insert
from waltap.changes.events.event import Record
from waltap.changes.transactions.order import TransactionOrder
from waltap.changes.transactions.position import START, Position
from waltap.changes.transactions.transaction import (
    Batch,
    Heartbeat,
    Part,
    SnapshotRows,
    TransactionPart,
)
from waltap.errors import RecordError, SinkError
from waltap.ports.sink.refusal import (
    BatchLocation,
    RecordsRefused,
    RefusedEvent,
    every_event,
    failing,
    less,
)
from waltap.ports.sink.sink import NullSink, SinkContext
from waltap.ports.transforms.rewrite import rewrite_columns
from waltap.services.dead_letters.dead_letter import FailureHandling, FailurePolicy
from waltap.services.dead_letters.poison_events import PoisonEventHandler
from waltap.services.dead_letters.queue import DeadLetterCopies, DeadLetterQueue
from waltap.services.dead_letters.store import DeadLetterStore
from waltap_testing.simulation import VirtualClock
from waltap_testing.workload import ITEMS

SIZES = st.lists(st.integers(0, 12), min_size=1, max_size=4)


def transaction(
    size: int, first: int, commit: int, gaps: Sequence[tuple[int, int]] = ()
) -> TransactionPart:
    changes = [Insert(ITEMS, n, (str(first + n), str(first + n), "x")) for n in range(size)]
    return TransactionPart(
        xid=7,
        begin_lsn=commit - 1,
        commit_lsn=commit,
        commit_ts=0,
        end_lsn=commit + 1,
        changes=list(changes),
        gaps=gaps,
    )


def parts_of(sizes: Sequence[int]) -> list[Part]:
    """Return parts of these sizes: transactions, with a heartbeat and a snapshot's piece among them."""
    parts: list[Part] = []
    for number, size in enumerate(sizes):
        if number % 3 == 2:
            rows = [(str(number * 100 + n), str(number * 100 + n), "x") for n in range(size)]
            parts.append(SnapshotRows(relation=ITEMS, rows=rows, ts=0, lsn=5, xid=None))
        else:
            parts.append(transaction(size, number * 100, 0x100 * (number + 1)))
        parts.append(Heartbeat(ts=number))
    return parts


def serials(parts: Sequence[Part]) -> list[int]:
    found: list[int] = []
    for part in parts:
        if isinstance(part, TransactionPart):
            found += [int(str(c.new[1])) for c in part.changes if isinstance(c, Insert)]
        elif isinstance(part, SnapshotRows):
            found += [int(str(row[1])) for row in part.rows]
    return found


@given(SIZES, st.data())
def test_what_fails_alone_is_found_and_the_rest_stays(sizes, data):
    parts = parts_of(sizes)
    every = serials(parts)
    bad = set(data.draw(st.lists(st.sampled_from(every), unique=True))) if every else set()
    tried: list[list[int]] = []

    def attempt(part: Part) -> None:
        tried.append(serials([part]))
        if bad & set(tried[-1]):
            raise RecordError("one of them")

    found = failing(parts, attempt)
    named = dict(zip(every_event(parts), every, strict=True))
    assert {named[where] for where in found} == bad
    assert [named[where] for where in found] == sorted(bad), "in the order of the batch"
    left = [
        less(part, {where.at for where in found if where.part == number})
        for number, part in enumerate(parts)
    ]
    assert serials(left) == [serial for serial in every if serial not in bad]
    for before, after in zip(parts, left, strict=True):
        if isinstance(before, TransactionPart):
            assert isinstance(after, TransactionPart)
            assert after.position(START) == before.position(START)
            assert after.wire_count == before.wire_count
            numbers = dict(zip(map(id, before.changes), before.numbers(), strict=True))
            assert list(after.numbers()) == [numbers[id(change)] for change in after.changes]


@given(st.integers(1, 500), st.integers(0, 499))
def test_one_bad_event_takes_few_tries(size, bad):
    bad %= size
    tries = 0

    def attempt(part: Part) -> None:
        nonlocal tries
        tries += 1
        if bad in serials([part]):
            raise RecordError("that one")

    assert list(failing([transaction(size, 0, 0x100)], attempt)) == [BatchLocation(0, bad)]
    assert tries <= 2 * size.bit_length() + 1


def test_the_search_may_end_with_the_first():
    def attempt(part: Part) -> None:
        if {3, 8} & set(serials([part])):
            raise RecordError("one of two")

    assert list(failing([transaction(10, 0, 0x100)], attempt, first_only=True)) == [
        BatchLocation(0, 3)
    ]


def test_what_was_left_out_before_counts_in_the_index():
    part = transaction(3, 0, 0x100, gaps=[(1, 5), (3, 2)])
    assert part.numbers() == [0, 6, 7]
    assert less(part, {0, 2}).gaps == [(0, 6), (1, 3)]
    assert less(part, {0, 1, 2}).gaps == [(0, 10)]


# --- what cannot be made is left out, and what is made again is counted once ------------------------------


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
def test_what_is_made_again_is_counted_once(tmp_path, policy, bad):
    """In the middle of a transaction, too: its first part was counted with the batch before."""
    first, rest = transaction(8, 0, 0x180).split(3)
    make = Counted(bad)
    dead_letters = DeadLetterQueue(
        DeadLetterStore(tmp_path), VirtualClock(), describe=lambda r: r, form=lambda: None
    )
    undeliverable = PoisonEventHandler(
        FailurePolicy(events=policy, records=policy), "", make.order, dead_letters
    )
    make(batch(first))
    savepoint = make.order.savepoint()
    with pytest.raises(RecordError):
        make(batch(rest))
    made = undeliverable.made_without(batch(rest), make, savepoint)
    kept = 5 - len(bad)
    assert make.order.total == 3 + kept
    assert make.order.counts() == {ITEMS.name: 3 + kept}
    assert [int(r.value or b"") for r in made.records or ()] == list(range(4, 4 + kept))


# --- a sink may refuse one event after the other ----------------------------------------------------------


def kept_of(folder: Path) -> tuple[PoisonEventHandler, DeadLetterStore]:
    store = DeadLetterStore(folder)
    dead_letters = DeadLetterQueue(store, VirtualClock(), describe=lambda r: r, form=lambda: None)
    policy = FailurePolicy(events=FailureHandling.DEAD_LETTER, records=FailureHandling.DEAD_LETTER)
    return PoisonEventHandler(policy, "", TransactionOrder(), dead_letters), store


def records_by(keys: str) -> Callable[[Batch], Batch]:
    """Return a format: the key of the row n is the n-th letter, and a space stands for none."""

    def make(given: Batch) -> Batch:
        changes = [c for part in given.parts for c in part.changes]  # type: ignore[union-attr]
        serials = [int(str(change.new[1])) for change in changes]  # type: ignore[union-attr]
        records = [Record("t", keys[n].strip().encode() or None, b"%d" % n) for n in serials]
        return msgspec.structs.replace(given, records=records)

    return make


@pytest.mark.parametrize("keys", ["aaaa", "    ", "abca", "abcd"])
def test_records_that_are_refused_one_by_one_are_dead_letters_of_their_own(tmp_path, keys):
    undeliverable, store = kept_of(tmp_path)
    whole, render, rendered = batch(transaction(4, 0, 0x180)), records_by(keys), list[int]()
    own = render(whole)

    def make(given: Batch) -> Batch:
        rendered.append(given.events)
        return render(given)

    for bad in (b"0", b"1", b"3"):
        if bad == b"1":
            assert sum(rendered) == 1, "no event after the refused one"
        index = [record.value for record in own.records or ()].index(bad)
        refusal = RecordsRefused([RefusedEvent(index=index, error=SinkError("too large"))])
        undeliverable.refused(whole, own, make, refusal)
    assert [record.value for record in own.records or ()] == [b"2"]
    found = [
        (each.location.index, each.record and each.record.value, each.change and each.change.new[1])
        for each in store.all()
    ]
    assert found == [(0, "0", "0"), (1, "1", "1"), (3, "3", "3")]
    assert sum(rendered) == 4, "each event once, for all refusals"


def test_a_copy_whose_sink_fails_in_its_close_too_reports_the_first_failure(tmp_path, monkeypatch):
    sink = NullSink(None, SinkContext(pipeline="p", state_dir=tmp_path))
    copies = DeadLetterCopies(lambda: sink, "letters")
    copies([])
    monkeypatch.setattr(sink, "close", raising(SinkError("close")))
    copies.close()
    monkeypatch.setattr(sink, "flush", raising(SinkError("flush")))
    with pytest.raises(SinkError, match="flush"):
        copies([])


def test_changes_that_are_refused_one_by_one_are_kept_as_the_server_sent_them(tmp_path):
    """A redelivered dead letter goes through the transforms again."""
    undeliverable, store = kept_of(tmp_path)
    transform = rewrite_columns(lambda _relation, _column: lambda values: [f"{v}!" for v in values])
    rows = SnapshotRows(
        relation=ITEMS, rows=[(str(n), str(n), "x") for n in range(3)], ts=0, lsn=5, xid=None
    )
    whole = Batch(parts=[transaction(3, 0, 0x180), rows], position=Position(0x200), events=6)
    own = transform(whole)
    for _ in range(2):
        for at in (0, 1):
            part = own.parts[at]
            error = SinkError("too large")
            refused = (
                RefusedEvent(change=part.changes[0], error=error)
                if isinstance(part, TransactionPart)
                else RefusedEvent(rows=part, index=0, error=error)  # type: ignore[arg-type]
            )
            undeliverable.refused(whole, own, transform, RecordsRefused([refused]))
    assert own.events == 2
    found = [(each.op, each.change and each.change.new[1:]) for each in store.all()]
    assert found == [(op, [str(n), "x"]) for n in range(2) for op in "cr"]
