"""Conformance tests for replica identities.

Subclass `IdentitySuite` and define the fixture ``rig``:

    class TestMyIdentity(IdentitySuite):
        @pytest.fixture
        def rig(self):
            return IdentityRig(MY_SPEC, old_tuples=(OldTuple.NONE, OldTuple.KEY))

The suite tries all updates and deletes of a small table that such a server can send.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import msgspec
import pytest

from waltap.changes.decode.message import Delete, OldTuple, Update
from waltap.changes.decode.relation import Column, Relation
from waltap.changes.decode.replica_identity import ReplicaIdentity, RowImages
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, MissingValue, Tuple
from waltap.ports.specs import ReplicaIdentitySpec
from waltap_testing.suite import RigSuite

NAMES = ("id", "a", "big")
# Letter of the replica identity in pg_class → columns that carry it.
KEYS: dict[str, tuple[str, ...]] = {"d": ("id",), "n": (), "f": NAMES, "i": ("a",), "c": ("id",)}


@dataclass(frozen=True, slots=True)
class IdentityRig:
    """The replica identity under test, and its messages."""

    spec: ReplicaIdentitySpec
    # The kinds of old tuples that the server sends with this identity.
    old_tuples: tuple[OldTuple, ...]
    # The identity's columns, of id (the primary key), a and big. None: as PostgreSQL defines the
    # letter, or the primary key for an unknown letter.
    in_identity: tuple[str, ...] | None = None
    # False: old tuples say nothing of the key, and the suite expects no old key.
    sees_key_change: bool = True

    def relation(self) -> Relation:
        held = self.in_identity
        if held is None:
            held = KEYS.get(self.spec.letter, ("id",))
        return Relation(
            oid=16401,
            schema="public",
            table="t",
            identity=self.spec.letter,
            primary_key=("id",),
            columns=tuple(
                Column(name=name, type_oid=25, in_identity=name in held, nullable=name != "id")
                for name in NAMES
            ),
        )

    def build(self) -> ReplicaIdentity:
        return self.spec.factory(self.relation())


class IdentitySuite(RigSuite):
    """Rules for every replica identity."""

    needs = "an IdentityRig"

    def test_spec_is_well_formed(self, rig: IdentityRig) -> None:
        """Name, summary and letter are valid and the object's own."""
        super().test_spec_is_well_formed(rig)
        assert len(rig.spec.letter) == 1
        assert rig.build().name == rig.spec.name

    # --- updates ---

    def test_images_are_as_long_as_the_relation(self, rig: IdentityRig) -> None:
        """Before, after and old key are whole tuples or None."""
        for message, images in _both(rig):
            if images is not None:
                for image in (images.before, images.after, images.old_key):
                    assert image is None or len(image) == len(NAMES), message

    def test_after_has_what_the_update_sent(self, rig: IdentityRig) -> None:
        """The after image has every sent value, and NULL as NULL."""
        for message, images in _updates(rig):
            assert images.after is not None, message
            for sent, shown in zip(message.new, images.after, strict=True):
                assert sent is UNCHANGED or shown == sent, message

    def test_unchanged_is_a_value_of_before_or_stays_unchanged(self, rig: IdentityRig) -> None:
        """An unsent value comes from the before image or stays UNCHANGED.

        It never becomes NULL.
        """
        for message, images in _updates(rig):
            assert images.after is not None, message
            for number, sent in enumerate(message.new):
                if sent is UNCHANGED:
                    shown = images.after[number]
                    before = UNCHANGED if images.before is None else images.before[number]
                    right = shown == before if isinstance(before, str) else shown is UNCHANGED
                    # A NULL is a value, or means that none was sent.
                    right |= shown is before is None
                    assert right, f"{message}: {NAMES[number]} became {shown!r}"

    def test_before_says_nothing_the_server_did_not(self, rig: IdentityRig) -> None:
        """The before image has only values of the old tuple.

        Other columns are missing, and ABSENT never becomes NULL.
        """
        for message, images in _both(rig):
            if images is None or images.before is None:
                continue
            assert message.old_kind is not OldTuple.NONE, f"{message}: before comes from nowhere"
            for name, old, shown in zip(NAMES, message.old, images.before, strict=True):
                assert isinstance(shown, MissingValue) or shown == old, (
                    f"{message}: {name} is {shown!r}"
                )
                assert not isinstance(old, MissingValue) or isinstance(shown, MissingValue), (
                    f"{message}: {name} was {old!r} and became {shown!r}"
                )

    def test_before_is_there_when_the_whole_row_was_sent(self, rig: IdentityRig) -> None:
        if OldTuple.FULL not in rig.old_tuples:
            pytest.skip("no full old tuples come")
        for message, images in _both(rig):
            if message.old_kind is OldTuple.FULL:
                assert images is not None, message
                assert images.before == message.old, message

    def test_without_old_tuple_there_is_no_old_key(self, rig: IdentityRig) -> None:
        """An update without an old tuple has no old key.

        Nothing was sent of the old row, so no change of the key is visible.
        """
        for message, images in _updates(rig):
            if message.old_kind is OldTuple.NONE:
                assert images.old_key is None, message

    def test_a_changed_key_is_seen_where_it_can_be(self, rig: IdentityRig) -> None:
        if not rig.sees_key_change or rig.old_tuples == (OldTuple.NONE,):
            pytest.skip("the rig says that no old tuple shows key changes")
        held = [n for n, column in enumerate(rig.relation().columns) if column.in_identity]
        seen = 0
        for message, images in _updates(rig):
            if message.old_kind is OldTuple.NONE:
                continue
            if any(
                message.old[n] != message.new[n] for n in held if message.new[n] is not UNCHANGED
            ):
                seen += 1
                assert images.old_key is not None, message
                for number in held:
                    assert images.old_key[number] == message.old[number], message
        # Without a changed key among the messages the test would check nothing.
        assert seen

    def test_identities_that_see_no_key_change_give_no_old_key(self, rig: IdentityRig) -> None:
        if rig.sees_key_change:
            pytest.skip("the rig says that it sees key changes")
        assert all(images.old_key is None for _, images in _updates(rig))

    # --- deletes ---

    def test_a_delete_is_dropped_only_without_old_tuple(self, rig: IdentityRig) -> None:
        for message, images in _deletes(rig):
            if message.old_kind is OldTuple.NONE:
                assert images is None, f"{message}: of which row?"
            else:
                assert images is not None, f"{message} got lost"

    def test_a_delete_has_no_after_and_its_key(self, rig: IdentityRig) -> None:
        """A delete has no after image, but its identity's columns.

        They are in the before image and in the old key.
        """
        held = [n for n, column in enumerate(rig.relation().columns) if column.in_identity]
        for message, images in _deletes(rig):
            if images is None:
                continue
            assert images.after is None, message
            assert images.before is not None, message
            assert images.old_key is not None, message
            for number in held:
                assert images.old_key[number] == message.old[number], message
                assert images.before[number] == message.old[number], message

    # --- rules ---

    def test_a_row_is_identified_by_columns_that_there_are(self, rig: IdentityRig) -> None:
        """`identifying` has indexes of whole keys, always sent."""
        found = rig.build().identifying
        assert isinstance(found, tuple)
        assert all(type(index) is int and 0 <= index < len(NAMES) for index in found), found
        assert len(set(found)) == len(found), found
        held = {n for n, column in enumerate(rig.relation().columns) if column.in_identity}
        key = {NAMES.index(name) for name in rig.relation().primary_key or ()}
        assert not found or set(found) >= key or set(found) == held, (
            f"{found} are neither the primary key nor the identity's columns"
        )

    def test_images_of_one_message_are_its_own(self, rig: IdentityRig) -> None:
        """The next message's images do not replace the last ones."""
        together = [images for _, images in list(_both(rig))]
        apart = [_plain(images) for _, images in _both(rig)]
        # One pair after another: the difference of two long lists takes pytest minutes.
        for images, alone in zip(together, apart, strict=True):
            assert _plain(images) == alone

    def test_messages_are_left_as_they_are(self, rig: IdentityRig) -> None:
        """Reading a message twice gives the same images, and changes nothing."""
        identity = rig.build()
        for message in _update_messages(rig):
            copy = msgspec.structs.replace(message)
            assert identity.update(message) == identity.update(message)
            assert message == copy
        for deletion in _delete_messages(rig):
            assert identity.delete(deletion) == identity.delete(deletion)

    def test_warnings_say_what_mends_them(self, rig: IdentityRig) -> None:
        """Each warning names the table, the problem and a remedy."""
        relation = rig.relation()
        # A table without key: most identities warn about it.
        bare = msgspec.structs.replace(
            relation,
            primary_key=(),
            columns=tuple(msgspec.structs.replace(c, in_identity=False) for c in relation.columns),
        )
        identity = type(rig.build())
        for table in (relation, bare):
            for warning in identity.warnings(table):
                assert warning.relation == table.name
                assert warning.what.strip()
                assert warning.remedy.strip()
            assert identity.warnings(table) == identity.warnings(table)


def _plain(images: RowImages | None) -> object:
    return None if images is None else (images.before, images.after, images.old_key)


def _update_messages(rig: IdentityRig) -> Iterator[Update]:
    relation = rig.relation()
    for kind in rig.old_tuples:
        for new in product(("1", "2"), ("x", None, UNCHANGED), ("y", None, UNCHANGED)):
            for old in _old_tuples(relation, kind):
                yield Update(relation, 16, new, old, kind)


def _delete_messages(rig: IdentityRig) -> Iterator[Delete]:
    relation = rig.relation()
    for kind in {*rig.old_tuples, OldTuple.NONE}:
        for old in _old_tuples(relation, kind):
            yield Delete(relation, 16, old, kind)


def _old_tuples(relation: Relation, kind: OldTuple) -> Iterator[Tuple]:
    """Yield old tuples of ``kind``: none, identity or whole rows."""
    if kind is OldTuple.NONE:
        yield ()
        return
    for row in product(("1", "9"), ("x", "w"), ("y", None)):
        if kind is OldTuple.FULL:
            yield row
        else:
            yield tuple(
                value if column.in_identity else ABSENT
                for column, value in zip(relation.columns, row, strict=True)
            )


def _both(rig: IdentityRig) -> Iterator[tuple[Update | Delete, RowImages | None]]:
    yield from _updates(rig)
    yield from _deletes(rig)


def _updates(rig: IdentityRig) -> Iterator[tuple[Update, RowImages]]:
    identity = rig.build()
    for message in _update_messages(rig):
        yield message, identity.update(message)


def _deletes(rig: IdentityRig) -> Iterator[tuple[Delete, RowImages | None]]:
    identity = rig.build()
    for message in _delete_messages(rig):
        yield message, identity.delete(message)
