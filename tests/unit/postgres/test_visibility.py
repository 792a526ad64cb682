"""What a snapshot beside an older slot has seen, what the stream then leaves out, and what publications do."""

from tests.harness.json_events import part as transaction

from waltap.changes.decode.message import Insert, LogicalMessage, Truncate
from waltap.changes.decode.relation import Relation
from waltap.changes.transactions.position import Position
from waltap.changes.transactions.transaction import TransactionPart
from waltap.ports.source.published import EVERYTHING, PublishedSubset
from waltap_postgres.visibility import PostgresOverlap, SnapshotVisibility, standby_saw

RELATION = Relation(oid=1, schema="public", table="t", columns=())


def part(xid: int | None, commit_lsn: int) -> TransactionPart:
    changes = Insert(RELATION, 1, ()), Insert(RELATION, 2, ())
    return transaction(*changes, xid=xid, commit_lsn=commit_lsn, end_lsn=commit_lsn + 8)


def test_no_text_means_that_nothing_is_left_out():
    assert SnapshotVisibility.parse("") is None


def test_transactions_before_the_snapshot_are_seen_unless_they_were_in_progress():
    view = SnapshotVisibility.parse("740:745:741,743@0/2000")
    assert [xid for xid in range(735, 750) if view.saw(xid)] == [*range(735, 741), 742, 744]


def test_the_wire_has_the_low_half_of_an_id():
    """Ids of the stream have 32 bits and wrap; those of the snapshot have 64."""
    epoch = 5 << 32
    view = SnapshotVisibility.parse(f"{epoch + 10}:{epoch + 20}:{epoch + 12}@0/2000")
    assert view.saw(11)
    assert not view.saw(12)
    assert not view.saw(20)
    assert view.saw((1 << 32) - 5)  # of the epoch before
    early = SnapshotVisibility.parse(f"{epoch - 3}:{epoch + 2}:@0/2000")
    assert early.saw((1 << 32) - 1)
    assert early.saw(1)
    assert not early.saw(3)


def test_what_was_seen_is_left_out_up_to_the_horizon_and_still_counts():
    view = PostgresOverlap.parse({"public.t": "740:745:741@0/2000"})
    seen, running, message = part(740, 0x1000), part(741, 0x1100), part(None, 0x1200)
    later = part(740, 0x2001)  # an id that came round again
    view.filter([seen, running, message, later])
    assert (seen.changes, seen.wire_count) == ([], 2)
    assert [len(p.changes) for p in (running, message, later)] == [2, 2, 2]
    assert seen.position(Position(1)) == Position(0x1008)
    seen.complete = False
    assert seen.position(Position(1)) == Position(1, 0x1000, 2)


def test_tables_that_were_read_later_are_left_out_alone_up_to_their_own_horizon():
    other = Relation(oid=2, schema="public", table="o", columns=())
    unnumbered = Relation(oid=0, schema="public", table="t", columns=())
    message = LogicalMessage(5, transactional=True, prefix="p", content=b"")
    later = "740:745:741@0/2000"
    view = PostgresOverlap.parse({"1": later, "public.t": later})
    seen, running, after = part(740, 0x1000), part(741, 0x1100), part(740, 0x2001)
    both = Truncate((RELATION, other), 4)
    seen.changes += [Insert(other, 3, ()), both, Truncate((RELATION,), 4), message]
    seen.changes.append(Insert(unnumbered, 6, ()))
    view.filter([seen, running, after])
    assert [type(c) for c in seen.changes] == [Insert, Truncate, LogicalMessage]
    assert seen.changes[0].relation is other  # type: ignore[union-attr]
    assert seen.changes[1].relations == (other,)  # type: ignore[union-attr]
    assert seen.wire_count == 7
    assert [len(p.changes) for p in (running, after)] == [2, 2]
    assert PostgresOverlap.parse({}) is None


def test_a_transaction_is_compared_once_with_a_snapshot_of_many_tables(monkeypatch):
    compared, contains = list[int](), SnapshotVisibility.contains

    def counted(self: SnapshotVisibility, part: TransactionPart) -> bool:
        compared.append(part.commit_lsn)
        return contains(self, part)

    monkeypatch.setattr(SnapshotVisibility, "contains", counted)
    tables = {str(oid): f"740:745:741@0/{oid % 2 + 2}000" for oid in range(100)}
    view = PostgresOverlap.parse(tables)
    seen, after = part(740, 0x1000), part(740, 0x2800)
    view.filter([seen, after])
    assert [len(p.changes) for p in (seen, after)] == [0, 0], "of table 1, which was read later"
    assert compared == [0x1000, 0x1000, 0x2800, 0x2800]


def test_a_standby_knows_of_commits_that_it_replayed_before_the_snapshot():
    assert standby_saw(99, 100) is True
    assert standby_saw(100, 100) is None, "the record that begins there was not replayed yet"


def test_of_a_standbys_snapshot_the_position_alone_decides():
    view = PostgresOverlap.parse({"public.t": "@0/1000"})
    seen, after, message = part(1 << 31, 0xFFF), part(3, 0x1000), part(None, 0xFFF)
    view.filter([seen, after, message])
    assert [len(p.changes) for p in (seen, after, message)] == [0, 2, 2]


def test_a_filter_joins_the_condition_of_a_range():
    narrowing = PublishedSubset("(a > 1) OR (b < 2)")
    assert narrowing.where() == " WHERE ((a > 1) OR (b < 2))"
    assert narrowing.where(" WHERE x OR y") == " WHERE ((a > 1) OR (b < 2)) AND (x OR y\n)"
    assert EVERYTHING.where(" WHERE x") == " WHERE x"
    assert EVERYTHING.where() == ""
