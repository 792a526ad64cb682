"""The conformance suite of waltap: kills, full disks, readers beside the writer."""

import pytest

from waltap_testing import OffsetStoreRig, OffsetStoreSuite
from waltap_sqlite.plugin import register_offset_stores
from waltap_sqlite.store import SqliteProperties

(SPEC,) = register_offset_stores()


class TestSqliteOffsetStore(OffsetStoreSuite):
    @pytest.fixture
    def new_rig(self):
        return lambda folder: OffsetStoreRig(SPEC, SqliteProperties(), folder)
