"""The conformance suite of waltap, and what this transform is for."""

import pytest

from waltap.changes.decode import UNCHANGED, Insert, OldTuple, Update
from waltap.changes.transactions import Batch, TransactionPart
from waltap.ports.source import Position
from waltap_testing import TransformRig, TransformSuite
from waltap_testing.workload import ITEMS
from waltap_stars.plugin import register_transforms
from waltap_stars.transform import StarsProperties

(SPEC,) = register_transforms()
PROPERTIES = StarsProperties.model_validate({"columns": "public.items.name"})


class TestStars(TransformSuite):
    @pytest.fixture
    def rig(self):
        return TransformRig(SPEC, PROPERTIES)


def test_text_becomes_stars_and_nothing_else_does():
    changes = [
        Insert(ITEMS, 16, ("1", "1", "secret")),
        Update(ITEMS, 17, ("1", "2", None), ("1", "1", "secret"), OldTuple.FULL),
        Update(ITEMS, 18, ("1", "3", UNCHANGED)),
    ]
    part = TransactionPart(
        xid=7, begin_lsn=8, commit_lsn=20, commit_ts=1, end_lsn=24, changes=changes
    )
    batch = SPEC.factory(PROPERTIES)(Batch(parts=[part], position=Position(24), events=3))
    insert, update, untouched = batch.parts[0].changes
    assert insert.new == ("1", "1", "***")
    assert update.new == ("1", "2", None)
    assert update.old == ("1", "1", "***")
    assert untouched.new[2] is UNCHANGED
