"""What old tuples mean under each replica identity."""

import pytest
from tests.harness.json_events import table

from waltap.changes.decode.message import Delete, OldTuple, Update
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED
from waltap_postgres.identity import (
    REPLICA_IDENTITIES,
    DefaultIdentity,
    FullIdentity,
    IndexIdentity,
    NothingIdentity,
)
from waltap_yugabyte.identity import ChangeIdentity

COLUMNS = ("id int4 not null", "a text not null", "b text")
NEW = ("1", "x", None)
KEY = ("1", ABSENT, ABSENT)


def default(identity: str = "d"):
    return table("t", *COLUMNS, identity=identity)


LARGE = ("1", UNCHANGED, "b")
MOVED = ("2", UNCHANGED, None)
UNSENT = (UNCHANGED, UNCHANGED, UNCHANGED)
OLD = ("1", "big", None)
NONE, OF_KEY, FULL = OldTuple.NONE, OldTuple.KEY, OldTuple.FULL
UPDATES = {
    "nothing old of default": (DefaultIdentity, NEW, (), NONE, (None, NEW, None)),
    "nothing old of index": (IndexIdentity, NEW, (), NONE, (None, NEW, None)),
    "nothing old of full": (FullIdentity, NEW, (), NONE, (None, NEW, None)),
    "nothing old of change": (ChangeIdentity, LARGE, (), NONE, (None, LARGE, None)),
    "an old key is before and old key": (DefaultIdentity, NEW, KEY, OF_KEY, (KEY, NEW, KEY)),
    "a key that lacks what is unchanged": (DefaultIdentity, MOVED, KEY, OF_KEY, (KEY, MOVED, KEY)),
    "a row completes": (FullIdentity, LARGE, OLD, FULL, (OLD, ("1", "big", "b"), None)),
    "a null completes": (FullIdentity, ("1", "x", UNCHANGED), NEW, FULL, (NEW, NEW, None)),
    "nothing knows no old row": (NothingIdentity, NEW, KEY, OF_KEY, (None, NEW, None)),
    "early servers' old tuple": (ChangeIdentity, LARGE, UNSENT, OF_KEY, (None, LARGE, None)),
}
"""Identity, new and old tuple of an update, and the images before and after and the old key."""


@pytest.mark.parametrize(("cls", "new", "old", "kind", "expected"), UPDATES.values(), ids=UPDATES)
def test_images_of_an_update(cls, new, old, kind, expected) -> None:
    relation = default("f" if cls is FullIdentity else "d")
    images = cls(relation).update(Update(relation, 9, new, old, kind))
    before, after, old_key = expected
    assert (images.before, images.after) == (before, after)
    assert kind is FULL or images.old_key == old_key


def test_a_plan_promises_no_old_key_of_rows_that_nothing_identifies() -> None:
    keyless = table("t", "a text", identity="d")
    assert DefaultIdentity(default()).before.startswith("the old key")
    assert DefaultIdentity(keyless).before == NothingIdentity.before


DELETES = {
    **{
        f"{cls.__name__} without old tuple": (cls, (), NONE, None)
        for cls in (DefaultIdentity, IndexIdentity, FullIdentity, ChangeIdentity)
    },
    "a key": (DefaultIdentity, KEY, OF_KEY, KEY),
    "nothing drops it": (NothingIdentity, KEY, OF_KEY, None),
    "change reads only the key": (ChangeIdentity, ("1", None, None), OF_KEY, KEY),
}


@pytest.mark.parametrize(("cls", "old", "kind", "expected"), DELETES.values(), ids=DELETES)
def test_images_of_a_delete(cls, old, kind, expected) -> None:
    relation = default()
    images = cls(relation).delete(Delete(relation, 9, old, kind))
    if expected is None:
        assert images is None
    else:
        assert (images.before, images.after, images.old_key) == (expected, None, expected)


def test_the_old_row_of_a_table_without_columns_is_empty() -> None:
    relation = table("t", identity="f")
    images = FullIdentity(relation).delete(Delete(relation, 9, (), FULL))
    assert images.before == ()


def test_each_letter_has_one_identity() -> None:
    assert {spec.letter: spec.name for spec in REPLICA_IDENTITIES} == {
        "d": "default",
        "n": "nothing",
        "f": "full",
        "i": "index",
    }


def test_tables_with_a_key_raise_no_warning() -> None:
    assert DefaultIdentity.warnings(default()) == []
    assert FullIdentity.warnings(table("t", "a text", key=(), identity="f")) == []
    assert ChangeIdentity.warnings(default("c")) == []
    covering = table("t", *COLUMNS, identity="i", index=("id",))
    assert IndexIdentity.warnings(covering) == []


@pytest.mark.parametrize(
    ("cls", "relation", "remedy"),
    [
        (
            DefaultIdentity,
            table('we"ird.No key', "a text", key=()),
            'ALTER TABLE "we""ird"."No key" REPLICA IDENTITY FULL;',
        ),
        (
            IndexIdentity,
            table("t", *COLUMNS, identity="i", index=("a",)),
            'ALTER TABLE "public"."t" REPLICA IDENTITY DEFAULT;',
        ),
        (NothingIdentity, default("n"), 'ALTER TABLE "public"."t" REPLICA IDENTITY DEFAULT;'),
        (
            NothingIdentity,
            table("t", "a text", key=(), identity="n"),
            'ALTER TABLE "public"."t" REPLICA IDENTITY FULL;',
        ),
    ],
)
def test_warning_names_the_table_and_the_sql_that_mends_it(cls, relation, remedy) -> None:
    (warning,) = cls.warnings(relation)
    assert (warning.relation, warning.remedy) == (relation.name, remedy)
    assert "key" in warning.what or "deletes" in warning.what


def test_change_warns_of_a_table_without_key() -> None:
    (warning,) = ChangeIdentity.warnings(table("t", "a text", key=(), identity="c"))
    assert "primary key" in warning.remedy
