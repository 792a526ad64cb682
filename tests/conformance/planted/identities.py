"""Replica identities and snapshot modes with one planted fault each."""

from dataclasses import replace
from typing import ClassVar

import pytest

import waltap_postgres.plugin
from waltap.decode.message import OldTuple
from waltap.decode.replica_identity import IdentityWarning, ReplicaIdentity, RowImages
from waltap.decode.tuple_image import ABSENT, UNCHANGED
from waltap.snapshot.snapshotter import Known, Snapshotter
from waltap.specs import SnapshotterSpec
from waltap_testing.identity_suite import IdentityRig, IdentitySuite
from waltap_testing.snapshotter_suite import SnapshotterRig, SnapshotterSuite
from waltap_postgres.identity import DefaultIdentity, FullIdentity, NothingIdentity

SPECS = {spec.name: spec for spec in waltap_postgres.plugin.register_replica_identities()}


class Planted(IdentitySuite):
    """The suite on a faulty identity."""

    identity: ClassVar[type[ReplicaIdentity]]
    sees_key_change: ClassVar[bool] = True

    @pytest.fixture
    def rig(self):
        spec = replace(SPECS[self.identity.name], factory=self.identity)
        full = isinstance(self.identity, type) and issubclass(self.identity, FullIdentity)
        kinds = (OldTuple.FULL,) if full else (OldTuple.NONE, OldTuple.KEY)
        return IdentityRig(spec, kinds, sees_key_change=self.sees_key_change)


class TestWithoutFault(Planted):
    identity = DefaultIdentity
    caught_by = ""


class FoldsAbsent(DefaultIdentity):
    def update(self, message):
        images = super().update(message)
        if images.before is not None:
            images.before = tuple(None if v is ABSENT else v for v in images.before)
        return images


class TestFoldsAbsentIntoNull(Planted):
    identity = FoldsAbsent
    caught_by = "test_before_says_nothing_the_server_did_not"


class FoldsUnchanged(DefaultIdentity):
    def update(self, message):
        images = super().update(message)
        images.after = tuple(None if v is UNCHANGED else v for v in images.after)
        return images


class TestFoldsUnchangedIntoNull(Planted):
    identity = FoldsUnchanged
    caught_by = "test_unchanged_is_a_value_of_before_or_stays_unchanged"


class ForgetsToFill(FullIdentity):
    def update(self, message):
        return RowImages(message.old, message.new, message.old)


class TestForgetsToFillUnchanged(Planted):
    identity = ForgetsToFill
    caught_by = "test_unchanged_is_a_value_of_before_or_stays_unchanged"


class MissesKeyChanges(DefaultIdentity):
    def update(self, message):
        images = super().update(message)
        images.old_key = None
        return images


class TestMissesKeyChanges(Planted):
    identity = MissesKeyChanges
    caught_by = "test_a_changed_key_is_seen_where_it_can_be"


class InventsBefore(DefaultIdentity):
    def update(self, message):
        images = super().update(message)
        if images.before is None:
            images.before = message.new
        return images


class TestInventsBefore(Planted):
    identity = InventsBefore
    caught_by = "test_before_says_nothing_the_server_did_not"


class DropsAllDeletes(DefaultIdentity):
    def delete(self, message):
        return None


class TestDropsDeletes(Planted):
    identity = DropsAllDeletes
    caught_by = "test_a_delete_is_dropped_only_without_old_tuple"


class KeyOnly(FullIdentity):
    def update(self, message):
        images = super().update(message)
        images.before = (message.old[0], ABSENT, ABSENT)
        return images


class TestKeepsOnlyTheKeyOfAFullRow(Planted):
    identity = KeyOnly
    caught_by = "test_before_is_there_when_the_whole_row_was_sent"


class ShortImages(DefaultIdentity):
    def delete(self, message):
        images = super().delete(message)
        if images is not None:
            images.before = images.before[:1]
        return images


class TestGivesShortImages(Planted):
    identity = ShortImages
    caught_by = "test_images_are_as_long_as_the_relation"


class ChangesMessages(DefaultIdentity):
    def update(self, message):
        message.new = tuple("" if v is None else v for v in message.new)
        return super().update(message)


class TestChangesMessages(Planted):
    identity = ChangesMessages
    caught_by = "test_messages_are_left_as_they_are"


class AfterOfADelete(DefaultIdentity):
    def delete(self, message):
        images = super().delete(message)
        if images is not None:
            images.after = images.before
        return images


class TestHasAnAfterOfADelete(Planted):
    identity = AfterOfADelete
    caught_by = "test_a_delete_has_no_after_and_its_key"


class Helpless(DefaultIdentity):
    @classmethod
    def warnings(cls, relation):
        return [IdentityWarning(relation.name, "something is wrong", " ")]


class TestWarnsWithoutRemedy(Planted):
    identity = Helpless
    caught_by = "test_warnings_say_what_mends_them"


class SeesWhatItDenies(NothingIdentity):
    def update(self, message):
        return RowImages(None, message.new, message.old or None)


class TestSeesWhatItDenies(Planted):
    identity = SeesWhatItDenies
    sees_key_change = False
    caught_by = "test_identities_that_see_no_key_change_give_no_old_key"


# --- snapshot modes ---


class Initial(Snapshotter):
    """Like initial. Right as it is."""

    def takes_snapshot(self, known):
        return not known.offset or known.snapshot_incomplete

    def streams(self, known):
        return True


TABLE = """
    offset  incomplete  available   snapshot  stream
    no      no          no          yes       yes
    no      no          yes         yes       yes
    no      yes         no          yes       yes
    no      yes         yes         yes       yes
    yes     no          no          no        yes
    yes     no          yes         no        yes
    yes     yes         no          yes       yes
    yes     yes         yes         yes       yes
"""


class PlantedMode(SnapshotterSuite):
    """The suite on a faulty mode."""

    mode: ClassVar[type[Snapshotter]]
    table = TABLE

    @pytest.fixture
    def rig(self):
        spec = SnapshotterSpec(name="mode", summary="A mode.", factory=lambda _: self.mode())
        return SnapshotterRig(spec, self.table)


class TestModeWithoutFault(PlantedMode):
    mode = Initial
    caught_by = ""


class PassesOver(Initial):
    def takes_snapshot(self, known):
        return not known.offset


class TestPassesOverAnInterruptedSnapshot(PlantedMode):
    mode = PassesOver
    caught_by = "test_an_interrupted_snapshot_is_not_passed_over"


class TestDoesOtherThanItsTable(PlantedMode):
    mode = PassesOver
    caught_by = "test_it_does_what_its_table_says"


class Remembers(Initial):
    asked = 0

    def takes_snapshot(self, known):
        self.asked += 1
        return self.asked == 1 or super().takes_snapshot(known)


class TestAnswersDependOnThePast(PlantedMode):
    mode = Remembers
    caught_by = "test_answers_do_not_depend_on_what_was_asked_before"


class OnlySaysSo(Initial):
    def recovers_lost_position(self):
        return True


class TestSaysThatItRecovers(PlantedMode):
    mode = OnlySaysSo
    caught_by = "test_recovery_of_a_lost_position_is_a_snapshot"


class Partial(Initial):
    def takes_snapshot(self, known):
        return {Known(offset=False, snapshot_incomplete=False, position_available=True): True}[
            known
        ]


class TestPartialPredicate(PlantedMode):
    mode = Partial
    caught_by = "test_every_answer_is_a_bool_or_a_snapshot_error"


class TestTableWithoutALine(PlantedMode):
    mode = Initial
    table = TABLE.rsplit("yes     yes         yes", 1)[0]
    caught_by = "test_the_truth_table_is_total"


class ReadsAtRandom(Initial):
    asked = 0

    def reads(self, relation, start):
        self.asked += 1
        return self.asked % 3 != 0


class TestReadsOtherTablesWhenAskedAgain(PlantedMode):
    mode = ReadsAtRandom
    caught_by = "test_every_table_is_read_or_not"


class Deletes(Initial):
    def query(self, relation, start):
        return f"DELETE FROM {relation.name} RETURNING *"


class TestReadsByOtherThanASelect(PlantedMode):
    mode = Deletes
    caught_by = "test_a_table_is_read_by_one_select"


class LocksAList(Initial):
    def lock(self, relation, start):
        return [f"LOCK TABLE {relation.name}"]


class TestLocksByOtherThanAStatement(PlantedMode):
    mode = LocksAList
    caught_by = "test_a_lock_is_a_statement"


class Strange(Initial):
    def isolation(self, start):
        return "SERIALIZABLE READ ONLY"


class TestAsksForAnUnknownIsolation(PlantedMode):
    mode = Strange
    caught_by = "test_an_isolation_is_one_that_there_is"


class CountsOnTheEnd(Initial):
    tables = None

    def before(self, relations, start):
        assert self.tables is None
        self.tables = relations

    def after(self, start, *, completed):
        if completed:
            self.tables = None


class TestKeepsWhatAnInterruptedSnapshotLeft(PlantedMode):
    mode = CountsOnTheEnd
    caught_by = "test_a_snapshot_begins_and_is_over"
