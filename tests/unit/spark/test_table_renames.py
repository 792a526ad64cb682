"""Which table an entry of the change log is of, by its number in the source."""

from typing import Any

import pytest
from tests.unit.spark.test_plan import entry, manifest

from waltap.changes.decode.relation import FormerOwner
from waltap_sinks.changelog.manifest import Manifest, TableEntry
from waltap_spark.planning.plan import plan
from waltap_spark.planning.table_renames import DISPLACED, find_renames, free_place
from waltap_spark.state.output import StagedSegment, TableState


def of(name: str, oid: int, **more: Any) -> TableState:
    given = {"schema": "s", "table": name, "oid": oid, "oid_epoch": 1, "columns": {"id": '"long"'}}
    return TableState(**{**given, **more})


def tables(*given: TableState) -> dict[str, TableState]:
    return {each.name: each for each in given}


def at(name: str, oid: int, **more: Any) -> TableEntry:
    return entry(f"{name}{oid}", table=name, oid=oid, **more)


def log(*entries: TableEntry, epoch: int = 1) -> list[Manifest]:
    return [manifest(each, number=n, epoch=epoch) for n, each in enumerate(entries, 1)]


def played(before: dict[str, TableState], manifests: list[Manifest]) -> tuple[Any, Any]:
    """Return the names after, by the number before; and the segments of each table."""
    found = find_renames(manifests, before)
    after = found.applied(before, in_place=True)
    plans = plan(manifests, after, found.routes)
    segments = {n: [p for g in each.groups for p in g.segments] for n, each in plans.items()}
    return {each.oid: each.table for each in after.values()}, segments


NOW_B, NOW_Z = (FormerOwner(oid=1, schema="s", table=name) for name in "bz")
AZ = tables(of("a", 1), of("z", 9))
RENAMED = tables(of("b", 1, former_names=("s.a",)))
OLD_AND_A = tables(of("old", 1, former_names=("s.a",)), of("a", 9, former_names=("s.new",)))
NOW_OLD = FormerOwner(oid=1, schema="s", table="old")
SCRIPTS = {
    "a table is renamed, and goes on from the old name": (
        AZ, 1, [at("a", 1), at("b", 1)], {1: "b", 9: "z"}, {"s.b": ["a1", "b1"]},
    ),
    "a new table takes its name, which is reported before its rename is": (
        AZ, 1, [at("a", 2), at("b", 1)], {1: "b", 9: "z"}, {"s.b": ["b1"], "s.a": ["a2"]},
    ),
    "a name is dropped and created again": (AZ, 1, [at("a", 2)], {1: "a", 9: "z"}, {"s.a": ["a2"]}),
    "two tables exchange their names": (
        AZ, 1, [at("z", 1), at("a", 9)], {1: "z", 9: "a"}, {"s.z": ["z1"], "s.a": ["a9"]},
    ),
    "the owner of a name that another takes is displaced": (
        AZ, 1, [at("z", 1)], {1: "z", 9: "z@9"}, {"s.z": ["z1"]},
    ),
    "a number that is not known has its name": (AZ, 1, [at("b", 0)], {1: "a", 9: "z"}, {"s.b": ["b0"]}),
    "an entry without a number belongs to the name": (
        AZ, 1, [at("a", 0), at("b", 1)], {1: "b", 9: "z"}, {"s.b": ["a0", "b1"]},
    ),
    "a new table states who had its name": (
        AZ, 1, [at("a", 2, former_owner=NOW_B)], {1: "b", 9: "z"}, {"s.a": ["a2"]},
    ),
    "whose name of now is another's still": (
        AZ, 1, [at("a", 2, former_owner=NOW_Z)], {1: "a@1", 9: "z"}, {"s.a": ["a2"]},
    ),
    "until that one tells its own": (
        AZ, 1, [at("a", 2, former_owner=NOW_Z), at("y", 9)], {1: "z", 9: "y"}, {"s.a": ["a2"], "s.y": ["y9"]},
    ),
    "an owner that is renamed and stated": (
        AZ, 1, [at("z", 1, former_owner=FormerOwner(oid=9, schema="s", table="a"))],
        {1: "z", 9: "a"}, {"s.z": ["z1"]},
    ),
    "what is stated of an earlier owner counts no more": (
        AZ, 1, [at("a", 1, former_owner=FormerOwner(oid=5, schema="s", table="b"))],
        {1: "a", 9: "z"}, {"s.a": ["a1"]},
    ),
    "another schema": (
        AZ, 1, [at("a", 1, schema="t")], {1: "a", 9: "z"}, {"t.a": ["a1"]},
    ),
    "schema and table with other dots read the same": (
        tables(of("t.a", 1)), 1, [at("a", 2, schema="s.t"), at("t.a", 1), at("a", 2, schema="s.t")],
        {1: "t.a"}, {"s.t.a": ["t.a1"], "s.t.a@2": ["a2"]},
    ),
    "a number of another epoch may be another table's": (
        AZ, 2, [at("a", 9), at("z", 1)], {1: "a", 9: "z"}, {"s.a": ["a9"], "s.z": ["z1"]},
    ),
    "also where it is renamed": (
        AZ, 2, [at("b", 1), at("a", 1)], {1: "a", 9: "z"}, {"s.b": ["b1"], "s.a": ["a1"]},
    ),
    "changes of before a rename that are read again": (
        RENAMED, 2, [at("a", 1), at("b", 1)], {1: "b"}, {"s.b": ["a1", "b1"]},
    ),
    # the other one was renamed away before, and has changes of before
    **{
        f"a table that has only its new name in what is read again, {how}": (
            OLD_AND_A, 2, [at("a", 1), at("a", 9, former_owner=former), at("old", 1)],
            {1: "old", 9: "a"}, {"s.old": ["a1", "old1"], "s.a": ["a9"]},
        )
        for how, former in (("with its owner", NOW_OLD), ("unstated", None))
    },
}  # fmt: skip


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_table_is_known_by_its_number(script):
    before, epoch, entries, after, segments = SCRIPTS[script]
    assert played(before, log(*entries, epoch=epoch)) == (after, segments)


def test_a_renamed_table_keeps_its_place_and_a_new_one_of_its_name_gets_another():
    found = find_renames(log(at("b", 1)), tables(of("a", 1)))
    (b,) = (moved := found.applied(tables(of("a", 1)), in_place=True)).values()
    assert (b.storage, b.owner, b.former_names) == (("s", "a"), "s.a", ("s.a",))
    assert free_place(moved, ("s", "a"), 2) == ("s", "a@2")
    assert free_place(moved, ("s", "b"), 2) is None
    again = find_renames(log(at("c", 1)), moved).applied(moved, in_place=True)
    assert again["s.c"].storage == ("s", "a")


def test_a_table_that_was_set_aside_is_said_so_until_its_name_is_known():
    before = tables(of("a", 1), of("z", 9, stale=("why",)))
    displaced = find_renames(log(at("z", 1)), before).applied(before, in_place=False)
    assert displaced["s.z@9"].stale == ("why", DISPLACED)
    renamed = find_renames(log(at("other", 9)), displaced).applied(displaced, in_place=False)
    assert renamed["s.other"].stale == ("why",)


@pytest.mark.parametrize("split", range(5), ids="commits of {} and more entries".format)
def test_changes_of_before_an_exchange_that_are_read_again_are_the_tables_own(split):
    before = tables(of("z", 1, former_names=("s.a",)), of("a", 9, former_names=("s.z",)))
    again = log(at("a", 1), at("z", 9), at("z", 1), at("a", 9), epoch=2)
    paths: dict[int, list[str]] = {}
    for part in filter(None, (again[:split], again[split:])):
        found = find_renames(part, before)
        after = found.applied(before, in_place=True)
        for name, task in plan(part, after, found.routes).items():
            paths.setdefault(after[name].oid, []).extend(
                path for group in task.groups for path in group.segments
            )
        before = after
    assert {each.oid: each.table for each in before.values()} == {1: "z", 9: "a"}
    assert paths == {1: ["a1", "z1"], 9: ["z9", "a9"]}


def test_a_number_that_a_later_epoch_names_is_known_in_it():
    """Its rows may not be applied there yet, as during a snapshot."""
    after = find_renames(log(at("a", 1), epoch=2), AZ).applied(AZ, in_place=True)
    assert find_renames(log(at("b", 1), epoch=2), after).renamed == {"s.a": ("s", "b")}


def test_a_table_is_renamed_during_its_first_snapshot():
    part = StagedSegment(snapshot_id=1, path="p", fingerprint="f", rows=1, key=("id",), oid=1)
    before = tables(of("a", 0, columns={}, staged=(part,)))
    found = find_renames(log(at("b", 1, snapshot_id=1, complete=True)), before)
    after = found.applied(before, in_place=True)
    (group,) = plan(log(at("b", 1, snapshot_id=1, complete=True)), after, found.routes)[
        "s.b"
    ].groups
    assert (list(after), [*group.segments]) == (["s.b"], ["p", "b1"])


def test_entries_of_a_suspended_table_wait_under_all_of_its_names():
    waits = ((1, "s.a", 1),)
    before = tables(of("a", 1, failed="why", waits=waits))
    found = find_renames(log(at("b", 1), at("a", 2)), before)
    after = found.applied(before, in_place=True)
    assert after["s.b"].waits == ((1, "s.a", 1), (1, "s.b", 1))
    assert found.routes[1, "s.a", 2] == ("s", "a"), "another table has the name"


def test_a_suspended_table_that_was_dropped_and_created_again_has_the_new_number():
    before = tables(of("a", 1, failed="why", waits=((1, "s.a", 1),)))
    created = find_renames(log(at("a", 2)), before).applied(before, in_place=True)
    assert created["s.a"].waits == ((1, "s.a", 1), (1, "s.a", 2))
    later = find_renames(log(at("b", 2), at("old", 1)), created)
    assert later.renamed == {"s.a": ("s", "b")}
    assert later.routes[1, "s.old", 1] == ("s", "old"), "its rows were given up"


def test_a_table_that_an_earlier_release_suspended_keeps_its_name():
    before = tables(of("a", 1, failed="why"), of("z", 9))
    found = find_renames(log(at("b", 1), at("a", 9)), before)
    assert not found.renamed
    assert found.routes == {(1, "s.b", 1): ("s", "b"), (1, "s.a", 9): ("s", "a")}
