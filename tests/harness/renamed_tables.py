"""Tables that the source renames: those of Spark follow with rows and history, and no name has another's rows."""

from collections.abc import Iterator
from itertools import count

import msgspec
import pytest
from tests.harness.changelog import batch, copy_of, relation
from tests.harness.spark import Died, Rig, dying

from waltap.changes.decode.relation import FormerOwner, Relation
from waltap.changes.transactions.transaction import TransactionPart
from waltap_spark.apply import applier, resume_requests
from waltap_spark.apply.resume_requests import ResumeRequests
from waltap_spark.errors import TableDisplaced, TableSuspended, TableUnknown
from waltap_spark.formats.merging import MergingFormat
from waltap_spark.formats.stepwise import StepwiseFormat
from waltap_spark.read.live import LiveTables


def table(name: str, oid: int, kind: str = "text") -> Relation:
    return relation(f"public.{name}", [("id", "int4"), ("v", kind)], numbers=[1, 2], oid=oid)


def renamed(rig: Rig, *pairs: tuple[Relation, Relation]) -> None:
    """ALTER TABLE … RENAME of all ``pairs``."""
    rows = [rig.db.rows.pop(old.name, []) for old, _new in pairs]
    rig.db.rows |= {
        new.name: stored_table for (_old, new), stored_table in zip(pairs, rows, strict=True)
    }


A, B, NEW = table("a", 1), table("b", 1), table("a", 2)


def filled(rig: Rig, *tables: Relation) -> None:
    for each in tables:
        rig.db.insert(each, ["1", each.table], ["2", each.table])
    rig.follow()


def a_becomes_b(rig: Rig) -> None:
    filled(rig, A)
    renamed(rig, (A, B))


def delivered_twice(rig: Rig, *parts: TransactionPart, apart: bool) -> None:
    """Deliver transactions to two pipelines one after the other; ``apart``: each is in a commit of its own."""
    for _pipeline in range(2):
        for part in parts:
            rig.sink.write(batch(copy_of(part)))
            rig.sink.flush()
            if apart or part is parts[-1]:
                rig.apply()
        rig.start_over()


def tables_of(rig: Rig) -> LiveTables:
    return LiveTables(rig.spark, rig.output)


def rows(tables: LiveTables, of: Relation) -> list[tuple[int, str]]:
    return sorted(map(tuple, tables.current(of.name).collect()))


def history(rig: Rig, name: str) -> list[tuple[int, str]]:
    tables = LiveTables(rig.spark, rig.output, allow_stale=True)
    rows = tables.changes(f"public.{name}").select("_commit_lsn", "_seq", "id", "v").collect()
    return [(number, v) for _lsn, _seq, number, v in sorted(rows, key=lambda row: row[:2])]


def check(rig: Rig, *there: Relation) -> None:
    """Require these tables, with the source's rows, and no doubt of them."""
    assert tables_of(rig).names == sorted(each.name for each in there)
    assert not tables_of(rig).problems
    rig.check(*there)


def moments(rig: Rig) -> Iterator[None]:
    """Have what waits applied by drivers of which each dies one write later than the one before, until none does."""
    for moment in count(1):
        writes = (
            (rig.output, "sync"), (rig.output, "commit"), (rig.output.store, "publish"),
            (StepwiseFormat, "take"), (MergingFormat, "rename_table"),
        )  # fmt: skip
        try:
            with dying(*writes, at=moment):
                rig.apply()
        except Died:
            rig.reopen()
            yield
        else:
            return


def a_new_table_takes_its_name(rig: Rig) -> None:
    """In a later commit; then the renamed one is renamed once more, and another takes that name as well. `at` reads
    a table under its name of now, before the rename too."""
    filled(rig, A)
    begin, held = rig.applier.state.log_position, list(rig.db.rows[A.name])
    renamed(rig, (A, B))
    rig.update(B, ["1"], v="new")
    check(rig, B)
    assert history(rig, "b") == [(1, "a"), (2, "a"), (1, "new")]
    log_position = rig.applier.state.log_position
    if rig.choice.name != "parquet":
        then = tables_of(rig).at(begin).current(B.name).collect()
        assert sorted((str(row["id"]), row["v"]) for row in then) == held
    rig.insert(NEW, ["7", "seven"])
    rig.db.update(B, ["2"], v="newer")
    rig.db.update(NEW, ["7"], v="eight")
    rig.follow()
    check(rig, B, NEW)
    assert history(rig, "a") == [(7, "seven"), (7, "eight")]
    c, third = table("c", 1), table("b", 3)
    renamed(rig, (B, c))
    rig.db.update(c, ["1"], v="last")
    rig.db.insert(third, ["9", "nine"])
    rig.follow()
    rig.reopen()
    check(rig, c, NEW, third)
    assert history(rig, "c")[-2:] == [(2, "newer"), (1, "last")]
    if rig.choice.name != "parquet":
        then = tables_of(rig).at(log_position)
        assert sorted(map(tuple, then.current(c.name).collect())) == [(1, "new"), (2, "a")]
        assert then.current(NEW.name).collect() == []


def a_new_table_states_who_had_its_name(rig: Rig) -> None:
    """The renamed one has no change in the commit in which another takes its name, nor in the next one's."""
    now = FormerOwner(oid=1, schema="public", table="b")
    new = msgspec.structs.replace(NEW, former_owner=now)
    a_becomes_b(rig)
    rig.write(new, ["7", "seven"])
    assert list(moments(rig))
    check(rig, B, new)
    rig.update(new, ["7"], v="eight")
    rig.reopen()
    rig.update(B, ["1"], v="new")
    check(rig, B, new)
    assert history(rig, "b") == [(1, "a"), (2, "a"), (1, "new")]
    assert history(rig, "a") == [(7, "seven"), (7, "eight")]


def two_exchange_their_names_while_drivers_die(rig: Rig) -> None:
    """And a third takes a name of before, all within one commit."""
    a, z, new = table("a", 1), table("z", 2), table("y", 3)
    other, y = table("z", 1), table("a", 2)
    filled(rig, a, z)
    renamed(rig, (a, other), (z, y))
    rig.db.update(other, ["1"], v="other")
    rig.db.insert(y, ["3", "three"])
    rig.db.insert(new, ["9", "nine"])
    rig.commit()
    opened, died = tables_of(rig), 0
    for _each in moments(rig):
        died += 1
        assert rows(tables_of(rig), a) == [(1, "a"), (2, "a")], "the next commit has begun"
    assert died > 2
    check(rig, other, y, new)
    assert history(rig, "z") == [(1, "a"), (2, "a"), (1, "other")]
    assert history(rig, "a") == [(1, "z"), (2, "z"), (3, "three")]
    rig.insert(new, ["8", "eight"])
    if rig.choice.name != "parquet":
        assert rows(opened, a) == [(1, "a"), (2, "a")], "opened before the exchange"
        assert rows(opened, z) == [(1, "z"), (2, "z")]


def an_exchange_is_read_again(rig: Rig) -> None:
    """By a pipeline without its offset, whose slot is behind; each change is in a commit of its own then."""
    a, z, other, y = table("a", 1), table("z", 2), table("z", 1), table("a", 2)
    filled(rig, a, z)
    sent = []
    for each, key, value in ((a, "2", "second"), (z, "1", "first")):
        rig.db.update(each, [key], v=value)
        sent.append(rig.db.commit())
    renamed(rig, (a, other), (z, y))
    rig.db.insert(y, ["3", "three"])
    rig.db.update(other, ["1"], v="other")
    delivered_twice(rig, *sent, rig.db.commit(), apart=True)
    check(rig, other, y)
    assert history(rig, "z") == [(1, "a"), (2, "a"), (2, "second"), (1, "other")]
    assert history(rig, "a") == [(1, "z"), (2, "z"), (1, "first"), (3, "three")]


def one_that_was_renamed_before_its_first_commit_is_read_again(rig: Rig) -> None:
    """By a pipeline without its offset, whose slot is behind."""
    first = rig.db.inserted(A, ["1", "a"])
    renamed(rig, (A, B))
    rig.db.update(B, ["1"], v="b")
    delivered_twice(rig, first, rig.db.commit(), apart=False)
    check(rig, B)
    assert history(rig, "b") == [(1, "a"), (1, "b")]


def a_name_is_taken_in_the_commit_of_its_rename(rig: Rig) -> None:
    """The new table is told before the renamed one is."""
    a_becomes_b(rig)
    rig.db.insert(NEW, ["7", "seven"])
    rig.db.update(B, ["1"], v="new")
    rig.commit()
    assert list(moments(rig))
    check(rig, B, NEW)
    rig.db.delete(NEW, ["7"])
    rig.db.update(B, ["2"], v="newer")
    rig.follow()
    check(rig, B, NEW)
    assert history(rig, "b") == [(1, "a"), (2, "a"), (1, "new"), (2, "newer")]


def the_owner_of_a_taken_name_is_set_aside(rig: Rig) -> None:
    """Nobody knows whether it was dropped until its next change tells its name."""
    a, z, new = table("a", 1), table("z", 2), table("z", 1)
    filled(rig, a, z)
    begin = rig.applier.state.log_position
    renamed(rig, (z, old := table("old", 2)), (a, new))
    rig.update(new, ["1"], v="new")
    assert tables_of(rig).names == ["public.z", "public.z@2"]
    with pytest.raises(TableDisplaced, match="dropped, or renamed and not changed since"):
        tables_of(rig).current("public.z@2")
    rig.check(new)
    rig.db.delete(old, ["1"])
    rig.follow()
    check(rig, new, old)
    assert history(rig, "old") == [(1, "z"), (2, "z"), (1, None)]
    if rig.choice.name != "parquet":
        assert rows(tables_of(rig).at(begin), new) == [(1, "a"), (2, "a")], "before the rename"


def a_suspended_one_waits_under_its_new_name(rig: Rig) -> None:
    """It goes on with all of its changes, and none of those of the table that took its name."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(applier, "RETRY_S", 0.0)
        patch.setattr(resume_requests, "POLL_S", 0.0)
        wrong, b = table("a", 1, "int4"), table("b", 1, "int4")
        filled(rig, A)
        rig.update(wrong, ["1"], v="11")
        with pytest.raises(TableSuspended):
            tables_of(rig).current(A.name)
        renamed(rig, (A, b))
        rig.update(b, ["2"], v="22")
        with pytest.raises(TableSuspended):
            tables_of(rig).current(b.name)
        with pytest.raises(TableUnknown):
            tables_of(rig).current(A.name)
        rig.insert(NEW, ["7", "seven"])
        rig.check(NEW)
        rig.reopen()
        rig.write(b, ["3", "33"])
        ResumeRequests(rig.output).ask(rig.output.table(b.name), "text")
        rig.apply()
        assert tables_of(rig).names == [NEW.name, b.name]
        assert rig.output.table(b.name).failed == ""
        rig.check(b, NEW)
        assert history(rig, "b") == [(1, "a"), (2, "a"), (1, "11"), (2, "22"), (3, "33")]


def it_is_renamed_between_parts_of_a_snapshot(rig: Rig) -> None:
    """Parts under both names are of one table."""
    filled(rig, A)
    begin = rig.applier.state.log_position
    rig.db.rows[A.name] = [(str(n), "read") for n in range(5)]
    parts = rig.db.snapshot(A, rows_each=2)
    rig.sink.write(parts[0])
    rig.sink.flush()
    rig.apply()
    renamed(rig, (A, B))
    for part in rig.db.snapshot(B, rows_each=2)[1:]:
        rig.sink.write(part)
    rig.sink.flush()
    rig.apply()
    check(rig, B)
    if rig.choice.name != "parquet":
        assert rows(tables_of(rig).at(begin), B) == [(1, "a"), (2, "a")], "before the rename"


def names_are_the_tables_own(rig: Rig, catalogue: str) -> None:
    """Require that a catalogue has each table and its history under the table's name."""
    shown = {row["tableName"] for row in rig.spark.sql(f"SHOW TABLES IN {catalogue}").collect()}
    called = [each.table for each in rig.applier.state.tables.values()]
    assert shown == {name for each in called for name in (each, f"{each}_changes")}


COURSES = (
    a_new_table_takes_its_name,
    a_new_table_states_who_had_its_name,
    two_exchange_their_names_while_drivers_die,
    an_exchange_is_read_again,
    one_that_was_renamed_before_its_first_commit_is_read_again,
    a_name_is_taken_in_the_commit_of_its_rename,
    the_owner_of_a_taken_name_is_set_aside,
    a_suspended_one_waits_under_its_new_name,
    it_is_renamed_between_parts_of_a_snapshot,
)
