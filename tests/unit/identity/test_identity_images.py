"""Which replica identity a relation is read with, and what old tuples mean under each."""

from dataclasses import replace

import pytest
from tests.harness.json_events import table

from waltap.changes.decode import Relation
from waltap.changes.decode.message import Delete, OldTuple, Update
from waltap.changes.decode.replica_identity import IdentityAmbiguous, IdentityUnknown
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED
from waltap.changes.events import ReplicaIdentities
from waltap_postgres.identity import (
    REPLICA_IDENTITIES,
    DefaultIdentity,
    FullIdentity,
    IndexIdentity,
    NothingIdentity,
)
from waltap_yugabyte.identity import ChangeIdentity

COLUMNS = ("id int4 not null", "a text not null", "b text")
KEY = ("1", ABSENT, ABSENT)


def default(identity: str = "d"):
    return table("t", *COLUMNS, identity=identity)


LARGE = ("1", UNCHANGED, "b")
UNSENT = (UNCHANGED, UNCHANGED, UNCHANGED)
OF_KEY = OldTuple.KEY


def test_change_has_the_key_of_a_delete_and_nothing_of_an_early_servers_old_tuple():
    identity = ChangeIdentity(default())
    images = identity.update(Update(default(), 9, LARGE, UNSENT, OF_KEY))
    assert (images.before, images.after, images.old_key) == (None, LARGE, None)
    images = identity.delete(Delete(default(), 9, ("1", None, None), OF_KEY))
    assert (images.before, images.after, images.old_key) == (KEY, None, KEY)
    # the server sent nothing of the row
    for nothing, kind in ((UNSENT, OldTuple.NONE), ((), OldTuple.NONE), ((), OF_KEY)):
        assert identity.delete(Delete(default(), 9, nothing, kind)) is None


def test_change_reads_the_columns_of_the_primary_key_or_those_that_the_server_marks():
    keyless = table("t", *COLUMNS, key=(), identity="i", index=("b",))
    for relation, key in ((default("c"), KEY), (keyless, (ABSENT, ABSENT, "x"))):
        images = ChangeIdentity(relation).delete(Delete(relation, 9, ("1", "a", "x"), OF_KEY))
        assert images.old_key == key


def test_tables_with_a_key_raise_no_warning():
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
def test_warning_names_the_table_and_the_sql_that_mends_it(cls, relation, remedy):
    (warning,) = cls.warnings(relation)
    assert (warning.relation, warning.remedy) == (relation.name, remedy)
    assert "key" in warning.what or "deletes" in warning.what


def test_change_warns_of_a_table_without_key():
    (warning,) = ChangeIdentity.warnings(table("t", "a text", key=(), identity="c"))
    assert "primary key" in warning.remedy


TABLE = Relation(oid=1, schema="public", table="t", columns=(), identity="f", primary_key=())
FULL = next(spec for spec in REPLICA_IDENTITIES if spec.letter == "f")
MINE = replace(FULL, name="mine", factory=DefaultIdentity)


ALL = [*REPLICA_IDENTITIES, MINE]
CASES = {
    "the server's letter decides": (REPLICA_IDENTITIES, "", FullIdentity, ""),
    # whichever plugin was found last would have decided what old rows mean
    "a letter that two claim is nobody's": (ALL, "", IdentityAmbiguous, "'f' is claimed by full and mine"),
    "in either order": ([MINE, *REPLICA_IDENTITIES], "", IdentityAmbiguous, "'f' is claimed by full and mine"),
    "a plugin's choice decides among them": (ALL, "mine", DefaultIdentity, ""),
    "a letter that nobody claims is unknown": ([], "", IdentityUnknown, "identity 'f' is unknown"),
    "an unknown choice names who chose": (
        [], "mine", IdentityUnknown, "'mine', which acme 1.0 chooses for public.t, is unknown",
    ),
}  # fmt: skip
"""The identities that there are, what a plugin chooses, and what is found or raised."""


@pytest.mark.parametrize("case", CASES)
def test_a_relation_has_one_identity(case):
    specs, chosen, found, words = CASES[case]
    identities = ReplicaIdentities(specs, lambda _relation: chosen or None, lambda: "acme 1.0")
    if issubclass(found, Exception):
        with pytest.raises(found, match=words):
            identities.of(TABLE)
    else:
        assert isinstance(identities.of(TABLE), found)
