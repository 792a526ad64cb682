"""What of a batch is left for a destination that is ahead of the others."""

from hypothesis import given
from hypothesis import strategies as st
from tests.harness.changelog import relation

from waltap.changes.decode.message import Insert
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import (
    Batch,
    Heartbeat,
    TransactionPart,
    events_in,
    position_after,
    remaining,
    undelivered,
)

T = relation("public.t", [("id", "int4")])


@st.composite
def streams(draw: st.DrawFn) -> list[TransactionPart]:
    """Transactions with changes left out here and there, cut into parts at random."""
    parts: list[TransactionPart] = []
    lsn = 100
    for xid in range(1, draw(st.integers(1, 5)) + 1):
        changes: list[Insert] = []
        gaps: list[tuple[int, int]] = []
        for at in range(draw(st.integers(0, 8))):
            if draw(st.booleans()):
                gaps.append((at, draw(st.integers(1, 3))))
            changes.append(Insert(T, lsn + at, (f"{xid}.{at}",)))
        part = TransactionPart(
            xid=xid,
            begin_lsn=lsn,
            commit_lsn=lsn + 20,
            commit_ts=0,
            end_lsn=lsn + 30,
            changes=changes,  # type: ignore[arg-type]
            gaps=gaps,
        )
        for cut in sorted(draw(st.lists(st.integers(0, len(changes)), max_size=2))):
            done = sum(len(each.changes) for each in parts if each.xid == xid)
            if cut > done:
                first, part = part.split(cut - done)
                parts.append(first)
        parts.append(part)
        lsn += draw(st.sampled_from([10, 30]))  # 10: it commits where the one before ended
    return parts


def values(parts: list[TransactionPart]) -> list[str]:
    return [change.new[0] for part in parts for change in part.changes]  # type: ignore[union-attr]


@given(streams(), st.data())
def test_a_transaction_may_be_cut_elsewhere_the_second_time(parts, data):
    """Batches end where they end: what comes again has other cuts."""
    taken = data.draw(st.integers(0, len(parts)))
    reached = Position(100)
    for part in parts[:taken]:
        reached = part.position(reached)
    recut: list[TransactionPart] = []
    for part in parts:
        at = data.draw(st.integers(0, len(part.changes)))
        recut += part.split(at) if 0 < at < len(part.changes) else [part]
    assert values(remaining(recut, reached)) == values(parts[taken:])  # type: ignore[arg-type]


def test_rows_and_signs_of_life_remain():
    beat = Heartbeat(ts=1)
    assert remaining([beat], Position(1000)) == [beat]


def test_wal_that_came_before_moves_no_place_inside_a_transaction():
    """It may have been prepared before the end of what was delivered (``two_phase_at``)."""
    at = Position(100, 90, 2)
    assert at.passed(90) == at.passed(100) == at


@given(streams(), st.data())
def test_what_is_undelivered_moves_the_position_of_the_destination_on(parts, data):
    """What ended at that position does not come again: the table list is another one."""
    taken = data.draw(st.integers(0, len(parts)))
    start = Position(100)
    delivered = position_after(parts[:taken], start)
    lost = data.draw(st.sets(st.sampled_from(range(taken)))) if taken else set()
    again = [part for at, part in enumerate(parts) if at not in lost]
    before, reached = start, delivered
    for part in again:
        before = part.position(before)
        batch = Batch(parts=[part], position=before, events=len(part.changes))
        missing = undelivered(batch, reached)
        assert missing.position >= reached
        assert missing.events == events_in(missing.parts)
        if missing.parts:
            assert missing.ends_transaction == part.complete
        reached = missing.position
    assert reached == position_after(parts, start)
