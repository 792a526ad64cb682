"""Every offset store of ours keeps the kit's promises."""

import pytest

import waltap.plugin
from waltap.ports.offsets.file_store import FileOffsetProperties
from waltap_testing.suites.offset_store import OffsetStoreRig, OffsetStoreSuite

SPECS = {spec.name: spec for spec in waltap.plugin.register_offset_stores()}


class TestFile(OffsetStoreSuite):
    @pytest.fixture
    def new_rig(self):
        return lambda folder: OffsetStoreRig(
            SPECS["file"], FileOffsetProperties(), folder, path=folder / "offset.json"
        )


KEEP_NOTHING = {"memory"}


def test_every_registered_store_is_here():
    assert set(SPECS) - KEEP_NOTHING == {"file"}
