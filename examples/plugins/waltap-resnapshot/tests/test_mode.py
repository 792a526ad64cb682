"""The conformance suite of waltap: the truth table of the mode, and what it says of tables."""

import pytest

from waltap.changes.decode import Column, Relation
from waltap.ports.snapshot import SnapshotFacts, SnapshotStart
from waltap_testing import SnapshotterRig, SnapshotterSuite
from waltap_resnapshot.mode import Resnapshot
from waltap_resnapshot.plugin import register_snapshotters

(SPEC,) = register_snapshotters()
KNOWN = SnapshotFacts(offset=False, snapshot_incomplete=False, position_available=True)
START = SnapshotStart(known=KNOWN)


def table(schema, *columns):
    named = tuple(Column(name=name, type_oid=25) for name in columns)
    return Relation(oid=1, schema=schema, table="t", columns=named)


class TestResnapshot(SnapshotterSuite):
    @pytest.fixture
    def rig(self):
        return SnapshotterRig(
            SPEC,
            """
            offset  incomplete  available   snapshot  stream
            no      no          no          yes       yes
            no      no          yes         yes       yes
            no      yes         no          yes       yes
            no      yes         yes         yes       yes
            yes     no          no          yes       yes
            yes     no          yes         no        yes
            yes     yes         no          yes       yes
            yes     yes         yes         yes       yes
            """,
            relations=(table("public", "id"), table("archive", "id", "deleted_at")),
        )


def test_archives_are_not_read():
    assert Resnapshot().reads(table("public", "id"), START)
    assert not Resnapshot().reads(table("archive", "id"), START)


def test_rows_marked_as_deleted_are_left_out():
    assert Resnapshot().query(table("public", "id"), START) is None
    statement = Resnapshot().query(table("public", "id", "deleted_at"), START)
    assert statement == 'SELECT * FROM "public"."t" WHERE "deleted_at" IS NULL'
