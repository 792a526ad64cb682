"""What old tuples mean under each replica identity."""

import pytest
from tests.harness.json_events import table

from waltap.decode.message import Delete, OldTuple, Update
from waltap.decode.tuple_image import ABSENT, UNCHANGED
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


@pytest.mark.parametrize("cls", [DefaultIdentity, IndexIdentity, FullIdentity])
def test_update_without_old_tuple_has_no_before_and_no_key_change(cls: type) -> None:
    relation = default()
    images = cls(relation).update(Update(relation, 9, NEW))
    assert (images.before, images.after, images.old_key) == (None, NEW, None)


def test_old_key_of_an_update_is_before_and_old_key() -> None:
    relation = default()
    images = DefaultIdentity(relation).update(Update(relation, 9, NEW, KEY, OldTuple.KEY))
    assert (images.before, images.after, images.old_key) == (KEY, NEW, KEY)


def test_full_old_row_completes_unchanged_values() -> None:
    relation = default("f")
    old = ("1", "big", None)
    message = Update(relation, 9, ("1", UNCHANGED, "b"), old, OldTuple.FULL)
    images = FullIdentity(relation).update(message)
    assert (images.before, images.after) == (old, ("1", "big", "b"))


def test_the_old_row_of_a_table_without_columns_is_empty() -> None:
    relation = table("t", identity="f")
    images = FullIdentity(relation).delete(Delete(relation, 9, (), OldTuple.FULL))
    assert images is not None
    assert images.before == ()


def test_unchanged_value_that_the_old_key_lacks_stays_unchanged() -> None:
    relation = default()
    message = Update(relation, 9, ("2", UNCHANGED, None), KEY, OldTuple.KEY)
    assert DefaultIdentity(relation).update(message).after == ("2", UNCHANGED, None)


def test_unchanged_null_of_the_old_row_is_null() -> None:
    relation = default("f")
    message = Update(relation, 9, ("1", "x", UNCHANGED), NEW, OldTuple.FULL)
    assert FullIdentity(relation).update(message).after == ("1", "x", None)


@pytest.mark.parametrize("cls", [DefaultIdentity, IndexIdentity, FullIdentity, ChangeIdentity])
def test_delete_without_old_tuple_identifies_no_row(cls: type) -> None:
    relation = default()
    assert cls(relation).delete(Delete(relation, 9, (), OldTuple.NONE)) is None


def test_delete_has_before_and_key_from_the_old_tuple() -> None:
    relation = default()
    images = DefaultIdentity(relation).delete(Delete(relation, 9, KEY, OldTuple.KEY))
    assert images is not None
    assert (images.before, images.after, images.old_key) == (KEY, None, KEY)


def test_nothing_takes_new_rows_and_drops_deletes() -> None:
    relation = default("n")
    identity = NothingIdentity(relation)
    assert identity.delete(Delete(relation, 9, KEY, OldTuple.KEY)) is None
    images = identity.update(Update(relation, 9, NEW, KEY, OldTuple.KEY))
    assert (images.before, images.after, images.old_key) == (None, NEW, None)


def test_change_keeps_unsent_columns_apart_from_null() -> None:
    relation = default("c")
    sent = ("1", UNCHANGED, None)
    everything_unsent = (UNCHANGED, UNCHANGED, UNCHANGED)  # early servers' old tuple
    identity = ChangeIdentity(relation)
    for message in (
        Update(relation, 9, sent),
        Update(relation, 9, sent, everything_unsent, OldTuple.KEY),
    ):
        images = identity.update(message)
        assert (images.before, images.after, images.old_key) == (None, sent, None)


def test_change_reads_only_the_key_of_a_delete() -> None:
    relation = default("c")
    images = ChangeIdentity(relation).delete(Delete(relation, 9, ("1", None, None), OldTuple.KEY))
    assert images is not None
    assert images.before == images.old_key == KEY


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
