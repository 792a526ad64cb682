"""What every replica identity promises. Subclass `IdentitySuite` and define the fixture ``rig``.

    class TestMyIdentity(IdentitySuite):
        @pytest.fixture
        def rig(self):
            return IdentityRig(MY_SPEC, old_tuples=(OldTuple.NONE, OldTuple.KEY))

All updates and deletes that such a server can send, of a small table, are tried.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import msgspec
import pytest

from waltap.decode.message import Delete, OldTuple, Update
from waltap.decode.relation import Column, Relation
from waltap.decode.replica_identity import ReplicaIdentity, RowImages
from waltap.decode.tuple_image import ABSENT, UNCHANGED, MissingValue, Tuple
from waltap.specs import ReplicaIdentitySpec
from waltap_testing.spec_promises import assert_well_formed

__all__ = ["IdentityRig", "IdentitySuite"]

NAMES = ("id", "a", "big")
KEYS: dict[str, tuple[str, ...]] = {"d": ("id",), "n": (), "f": NAMES, "i": ("a",), "c": ("id",)}


@dataclass(frozen=True, slots=True)
class IdentityRig:
    """What the suite needs of an author.

    ``old_tuples`` are the kinds of old tuple that come under this identity. ``in_identity`` are the
    columns, of id (the primary key), a and big, that carry it; by default as PostgreSQL's letters
    say, the primary key for unknown ones. ``sees_key_change`` False: an update's old tuple, where one
    comes, says nothing of the key; the suite then wants no old key at all.
    """

    spec: ReplicaIdentitySpec
    old_tuples: tuple[OldTuple, ...]
    in_identity: tuple[str, ...] | None = None
    sees_key_change: bool = True

    def relation(self) -> Relation:
        """Return the table that everything is tried on."""
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
        """Return the identity of a new relation."""
        return self.spec.factory(self.relation())


class IdentitySuite:
    """Promises every replica identity keeps."""

    @pytest.fixture
    def rig(self) -> IdentityRig:
        """Return the identity to test. Subclasses define this."""
        pytest.fail(f"{type(self).__name__} must define the fixture 'rig' (an IdentityRig)")

    def test_spec_is_well_formed(self, rig: IdentityRig) -> None:
        """Name and summary are fit for pages; the letter is one, and the object has the name."""
        assert_well_formed(rig.spec)
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
        """Every value that came is in after, NULL as NULL."""
        for message, images in _updates(rig):
            assert images.after is not None, message
            for sent, shown in zip(message.new, images.after, strict=True):
                assert sent is UNCHANGED or shown == sent, message

    def test_unchanged_is_a_value_of_before_or_stays_unchanged(self, rig: IdentityRig) -> None:
        """What the server left out is filled from before where before has it, and never NULL."""
        for message, images in _updates(rig):
            assert images.after is not None, message
            for number, sent in enumerate(message.new):
                if sent is UNCHANGED:
                    shown = images.after[number]
                    before = UNCHANGED if images.before is None else images.before[number]
                    if isinstance(before, MissingValue):
                        assert shown is UNCHANGED, f"{message}: {NAMES[number]} became {shown!r}"
                    else:
                        assert shown == before, f"{message}: {NAMES[number]} became {shown!r}"

    def test_before_says_nothing_the_server_did_not(self, rig: IdentityRig) -> None:
        """Each value of before is that of the old tuple, or missing; ABSENT is never NULL."""
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
        """A full old tuple is before, whole."""
        if OldTuple.FULL not in rig.old_tuples:
            pytest.skip("no full old tuples come")
        for message, images in _both(rig):
            if message.old_kind is OldTuple.FULL:
                assert images is not None, message
                assert images.before == message.old, message

    def test_without_old_tuple_there_is_no_old_key(self, rig: IdentityRig) -> None:
        """Nothing was sent of the old row: the key has not changed as far as anyone can see."""
        for message, images in _updates(rig):
            if message.old_kind is OldTuple.NONE:
                assert images.old_key is None, message

    def test_a_changed_key_is_seen_where_it_can_be(self, rig: IdentityRig) -> None:
        """An old tuple with another value of an identity column gives the old key."""
        if not rig.sees_key_change or rig.old_tuples == (OldTuple.NONE,):
            pytest.skip("the rig says that no old tuple tells of key changes")
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
        assert seen

    def test_identities_that_see_no_key_change_give_no_old_key(self, rig: IdentityRig) -> None:
        """A rig without ``sees_key_change`` is a promise too."""
        if rig.sees_key_change:
            pytest.skip("the rig says that it sees key changes")
        assert all(images.old_key is None for _, images in _updates(rig))

    # --- deletes ---

    def test_a_delete_is_dropped_only_without_old_tuple(self, rig: IdentityRig) -> None:
        """What identifies a row is delivered, what identifies none is not."""
        for message, images in _deletes(rig):
            if message.old_kind is OldTuple.NONE:
                assert images is None, f"{message}: of which row?"
            else:
                assert images is not None, f"{message} got lost"

    def test_a_delete_has_no_after_and_its_key(self, rig: IdentityRig) -> None:
        """After is None; the identity's columns are in before and in the old key."""
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

    def test_messages_are_left_as_they_are(self, rig: IdentityRig) -> None:
        """Reading a message twice gives the same, and the message is what it was."""
        identity = rig.build()
        for message in _update_messages(rig):
            kept = msgspec.structs.replace(message)
            assert identity.update(message) == identity.update(message)
            assert message == kept
        for deletion in _delete_messages(rig):
            assert identity.delete(deletion) == identity.delete(deletion)

    def test_warnings_say_what_mends_them(self, rig: IdentityRig) -> None:
        """Each names the table, what is wrong, and SQL; the same each time."""
        relation = rig.relation()
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
    """Give the old tuples of ``kind``: none, the identity's columns, or whole rows."""
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
