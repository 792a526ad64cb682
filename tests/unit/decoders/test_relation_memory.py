"""What is remembered of relations over restarts."""

from pathlib import Path

import msgspec
import pytest

from waltap.changes.decode.relation import Column, DataType, FormerOwner, Relation, difference
from waltap.ports.source.relation_memory import MAX_REPLACED, RelationMemory
from waltap_testing.sinks.crash import limit_file_size


def relation(oid: int, table: str = "t", key: tuple[str, ...] = ("id",)) -> Relation:
    kind = DataType(oid=90000, schema="public", name="mood", labels=("a", "b"))
    return Relation(
        oid=oid,
        schema="public",
        table=table,
        primary_key=key,
        columns=(
            Column(name="id", type_oid=23, nullable=False, number=1),
            Column(
                name="m", type_oid=90000, data_type=kind, nullable=True, default="'a'", number=2
            ),
        ),
    )


def opened(path: Path, database: str = "1/db") -> RelationMemory:
    memory = RelationMemory(path)
    memory.open(database)
    return memory


def test_a_former_owner_is_known_by_its_name_after_a_restart(tmp_path):
    path = tmp_path / "state" / "relations"
    memory = opened(path)
    memory.put(relation(1))
    former = FormerOwner(oid=1, schema="public", table="old")
    present = msgspec.structs.replace(relation(2), former_owner=former)
    memory.put(present)
    memory.save()
    again = opened(path)
    assert again.named("public", "t").same_shape(present)
    assert (again.renamed_to("public", "old"), again.renamed_to("public", "t")) == (1, 0)
    again.start_over(())
    assert again.renamed_to("public", "old") == 0


def test_what_was_not_saved_or_is_of_another_database_is_not_believed(tmp_path):
    memory = opened(tmp_path / "relations")
    memory.put(relation(1))
    assert opened(tmp_path / "relations").get(1) is None
    memory.save()
    assert opened(tmp_path / "relations", "1/other").get(1) is None


@pytest.mark.parametrize(
    "harm",
    [
        *(lambda data, cut=cut: data[:-cut] for cut in (1, 3, 20)),
        lambda data: data.replace(b"other", b"oth\xffr"),
        lambda _data: b"\xff\xff\xff\xff rubbish",
    ],
    ids=["1 byte off", "3 bytes off", "20 bytes off", "no UTF-8", "rubbish"],
)
def test_a_harmed_end_costs_the_last_relation_alone(tmp_path, harm):
    path = tmp_path / "relations"
    memory = opened(path)
    memory.put(relation(1))
    memory.save()
    memory.put(relation(2, "other"))
    memory.save()
    path.write_bytes(harm(path.read_bytes()))
    again = opened(path)
    first_is_lost = path.read_bytes().endswith(b"rubbish")
    assert (again.get(1) is None) == first_is_lost
    assert again.get(2) is None
    again.put(relation(3, "later"))
    again.save()
    third = opened(path)
    assert [third.get(oid) is None for oid in (1, 2, 3)] == [first_is_lost, True, False]


def test_a_description_that_the_full_disk_took_half_of_is_saved_later(tmp_path):
    path = tmp_path / "relations"
    memory = opened(path)
    for oid in (1, 2, 3):
        memory.put(relation(oid, f"t{oid}"))
        limit_file_size(path.stat().st_size + 20 if oid == 2 else None)
        memory.save()
        limit_file_size(None)
    again = opened(path)
    assert all(again.get(oid) for oid in (1, 2, 3))


def test_the_file_does_not_grow_with_the_versions(tmp_path):
    path = tmp_path / "relations"
    memory = opened(path)
    sizes = []
    for turn in range(2000):
        memory.put(relation(1, key=("id",) if turn % 2 else ()))
        memory.save()
        sizes.append(path.stat().st_size)
    assert max(sizes) < 100 * sizes[0]
    again = opened(path).get(1)
    assert again.primary_key == ("id",)


def test_tables_that_are_made_anew_all_the_time_are_forgotten(tmp_path):
    memory = opened(tmp_path / "relations")
    for oid in range(1, 1001):
        memory.put(relation(oid))
        memory.save()
    known = [oid for oid in range(1, 1001) if memory.get(oid) is not None]
    assert known == list(range(1000 - MAX_REPLACED, 1001))


def test_the_oldest_description_goes_first(tmp_path):
    memory = RelationMemory(tmp_path / "relations", max_relations=3)
    memory.open("x")
    for oid in (1, 2, 3, 4):
        memory.put(relation(oid, f"t{oid}"))
    assert [memory.get(oid) is not None for oid in (1, 2, 3, 4)] == [False, True, True, True]


ID, MOOD = relation(1).columns
MORE = Column(name="n", type_oid=20, type_text="bigint", number=3)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({}, "described again"),
        ({"oid": 2}, "is another table"),
        ({"table": "u"}, "was public.t"),
        ({"columns": (ID, MOOD, MORE)}, "n: added (bigint)"),
        ({"columns": (ID,)}, "m: dropped"),
        ({"columns": (ID, msgspec.structs.replace(MOOD, name="o"))}, "m: renamed to o"),
        (
            {"columns": (ID, msgspec.structs.replace(MOOD, default=None))},
            "m: default 'a' → none",
        ),
        ({"columns": (msgspec.structs.replace(ID, nullable=True), MOOD)}, "id: NULL allowed"),
        ({"columns": (msgspec.structs.replace(ID, type_text="bigint", type_oid=20), MOOD)},
         "id: type 23 → bigint"),
        ({"primary_key": ()}, "key: id → none"),
        ({"identity": "f"}, "replica identity: d → f"),
    ],
)  # fmt: skip
def test_a_difference_is_named(change, found):
    old = relation(1)
    assert difference(old, msgspec.structs.replace(old, **change)) == [found]
