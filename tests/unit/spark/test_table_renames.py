"""Which table an entry of the change log is of, and which column, by numbers in the source; names in a catalogue."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.unit.spark.test_plan import entry, manifest

from waltap.changes.decode.relation import FormerOwner
from waltap_sinks.changelog.manifest import ColumnEntry, Manifest, TableEntry
from waltap_spark.formats.merging import renamed, spare
from waltap_spark.planning.column_identity import file_column, identify, replaced
from waltap_spark.planning.plan import SegmentGroup, plan
from waltap_spark.planning.table_renames import DISPLACED, find_renames, free_place
from waltap_spark.state.output import BasePart, StagedSegment, TableState, TargetMove


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
    over = log(at("b", 1), epoch=2)
    later = find_renames(over, after).applied(after, in_place=True)["s.b"]
    assert (later.oid_epoch, later.waits[-1]) == (1, (2, "s.b", 1)), "its rows are of before"


def test_a_suspended_table_that_was_dropped_and_created_again_has_the_new_number():
    before = tables(of("a", 1, failed="why", waits=((1, "s.a", 1),)))
    created = find_renames(log(at("a", 2)), before).applied(before, in_place=True)
    assert created["s.a"].waits == ((1, "s.a", 1), (1, "s.a", 2))
    later = find_renames(log(at("b", 2), at("old", 1)), created)
    assert later.renamed == {"s.a": ("s", "b")}
    assert later.routes[1, "s.old", 1] == ("s", "old"), "its rows were given up"


# --- tables in a catalogue get their source's names, whenever a driver dies -----------------------


class Died(Exception):
    """The driver is gone."""


class Catalogue:
    """Name → the table's own id; a driver dies at the rename number ``dies``."""

    def __init__(self, tables: dict[str, str], refused: str = "") -> None:
        self.tables, self.refused = tables, refused
        self.dies = 0

    def rename(self, old: str, new: str) -> bool:
        self.dies -= 1
        if self.dies == 0:
            raise Died
        if new == self.refused or new in self.tables:
            return False
        self.tables[new] = self.tables.pop(old)
        return True


def move(old: str, new: str) -> TargetMove:
    return TargetMove(table=new, what="current", identity=f"id of {old}", old=old, new=new)


def name(number: int) -> str:
    return f"`c`.`s`.`t{number}`"


@given(
    before=st.permutations(range(6)), after=st.permutations(range(6)), count=st.integers(1, 5),
    dies=st.integers(0, 9), late=st.booleans(),
)  # fmt: skip
def test_each_gets_its_name(before, after, count, dies, late):
    pairs = list(zip(map(name, before[:count]), map(name, after[:count]), strict=True))
    there = Catalogue({old: f"id of {old}" for old, _new in pairs})
    moves = [move(old, new) for old, new in pairs if old != new]
    there.dies = dies
    try:
        renamed(moves, there.tables.get, there.rename)
    except Died:
        there.dies = 0
    at = renamed(moves[::-1] if late else moves, there.tables.get, there.rename)
    assert at == {each: each.new for each in moves}
    assert there.tables == {new: f"id of {old}" for old, new in pairs}


def test_one_keeps_its_name_where_the_catalogue_refuses_another():
    """The next one cannot have its name either; a third is not concerned."""
    there = Catalogue({name(n): f"id of {name(n)}" for n in (1, 2, 3)}, refused=name(9))
    moves = [move(name(1), name(9)), move(name(2), name(1)), move(name(3), name(4))]
    at = renamed(moves, there.tables.get, there.rename)
    assert list(at.values()) == [name(1), name(2), name(4)]


def test_a_table_of_another_id_is_left_alone():
    there = Catalogue({name(1): "another", spare(move(name(1), name(2))): f"id of {name(1)}"})
    (at,) = renamed([move(name(1), name(2))], there.tables.get, there.rename).values()
    assert at == name(2)
    assert there.tables == {name(1): "another", name(2): f"id of {name(1)}"}


def test_a_table_that_took_the_place_of_one_that_is_gone_is_left_alone():
    there = Catalogue({name(1): "another"})
    (at,) = renamed([move(name(1), name(2))], there.tables.get, there.rename).values()
    assert at == name(1)
    assert there.tables == {name(1): "another"}


# --- columns by the number that the source gives them, whatever their names are -------------------


def group(*columns: tuple[str, int], **more: Any) -> SegmentGroup:
    entries = tuple(ColumnEntry(name=n, type="int4", arrow="int32", number=i) for n, i in columns)
    return SegmentGroup("f", 1, ("id",), entries, oid=7, streamed=True, **more)


def table(**more: Any) -> TableState:
    """Return a table of two columns, with rows of both in a file."""
    ids = {"id": 1, "v": 2}
    columns = dict.fromkeys(ids, "int")
    part = BasePart(path="p", rows=1, epoch=1, columns=columns, ids=ids)
    made = TableState(
        schema="public",
        table="t",
        columns=columns,
        ids=ids,
        base=(part,),
        oid=7,
        key=("id",),
        **more,
    )
    return identify(made, group(("id", 1), ("v", 2)), {})[0]


def test_a_column_of_a_former_table_is_read_once_from_its_files():
    """That table dropped v, and added another v; the present one has none."""
    kinds = {"id": '"integer"', "v": '"string"', "v@2": '"string"'}
    state = TableState(
        schema="public", table="t", columns=kinds, ids={"id": 10_001, "v@2": 2}, incarnation=1
    )
    for ids, found in (({"id": 1, "v": 2}, ["v", None]), ({"id": 1, "v": 3}, [None, "v"])):
        has = dict.fromkeys(ids, '"string"')
        assert [file_column(state, has, ids, name) for name in ("v@2", "v")] == found


def test_columns_of_files_without_numbers_are_told_apart_after_others_take_their_names():
    """An earlier release wrote no numbers; b and c were dropped, then x and y get their names."""
    kinds = dict.fromkeys(("id", "b", "c", "x", "y"), "int")
    state = TableState(schema="public", table="t", columns=kinds, file_schemas={"o": kinds}, oid=7)
    for at, (four, five) in enumerate([("x", "y"), ("b", "y"), ("b", "c")]):
        names = group(("id", 1), (four, 4), (five, 5))
        types = dict.fromkeys(("id", four, five), "int")
        state, _reasons = identify(state, dataclasses.replace(names, fingerprint=f"f{at}"), types)
        state = replace(
            state,
            columns={**state.columns, **types},
            file_schemas={**state.file_schemas, f"f{at}": types},
        )
    found = {
        name: file_column(state, kinds, state.version_ids["o"], name) for name in state.columns
    }
    assert found == {"id": "id", "b@": "b", "c@": "c", "b": "x", "c": "y"}


def test_a_column_that_was_left_out_for_a_while_needs_a_new_snapshot():
    without, reasons = identify(table(), group(("id", 1)), {})
    assert reasons == ()
    _again, reasons = identify(without, group(("id", 1), ("v", 2)), {})
    assert reasons == ("v was not captured for a while",)
    another, _reasons = identify(replaced(table(), keeps_rows=True), group(("id", 1)), {})
    _new, reasons = identify(another, group(("id", 1), ("v", 2)), {})
    assert reasons == (), "the v that is there was a former table's"


@pytest.mark.parametrize(
    ("ids", "doubted"), [({"id": 10_001, "v": 2}, False), ({"id": 10_001}, True)]
)
def test_a_default_is_in_doubt_where_rows_have_a_former_column_as_null(ids, doubted):
    """In files of the former table it has its values, and a number."""
    gone = table()
    gone = replace(gone, base=(replace(gone.base[0], ids=ids),))
    made, _reasons = identify(replaced(gone, keeps_rows=True), group(("id", 1)), {})
    new = group(("id", 1), ("v", 2))
    new.columns = tuple(replace(column, missing="5") for column in new.columns)
    assert bool(identify(made, new, {})[1]) is doubted
