"""Offset stores with one planted fault each. ``caught_by`` names the promise it breaks."""

import os
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from waltap.errors import OffsetError
from waltap.offsets.offset import Offset, OffsetStore, decoded, encoded
from waltap.specs import OffsetStoreSpec
from waltap_testing.offset_store_suite import OffsetStoreRig, OffsetStoreSuite


class Unreadable(OffsetError):
    """It is no offset."""

    code = "WT-6900"


class OneFile(OffsetStore):
    """One file, replaced atomically. Right as it is."""

    def __init__(self, _properties, home):
        self.path = Path(home) / "offset"

    def load(self):
        try:
            return self.parse(self.path.read_bytes())
        except FileNotFoundError:
            return None

    def parse(self, data):
        try:
            return decoded(data)
        except ValueError as cause:
            raise Unreadable("damaged") from cause

    def store(self, offset):
        new = self.path.with_suffix(".new")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.put(new, encoded(offset))
            new.replace(self.path)
        except OSError as cause:
            raise Unreadable("not stored") from cause

    def put(self, path, data):
        with path.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    def clear(self):
        self.path.unlink(missing_ok=True)


class Planted(OffsetStoreSuite):
    """The suite on a faulty store."""

    store_class: ClassVar[type[OffsetStore]]

    @pytest.fixture
    def new_rig(self):
        spec = OffsetStoreSpec(name="one-file", summary="One file.", factory=self.store_class)
        return lambda folder: OffsetStoreRig(spec, None, folder, path=folder / "offset")


class TestWithoutFault(Planted):
    store_class = OneFile
    caught_by = ""


class WritesInPlace(OneFile):
    def store(self, offset):
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.put(self.path, encoded(offset))
        except OSError as cause:
            raise Unreadable("not stored") from cause


class TestWritesInPlace(Planted):
    store_class = WritesInPlace
    caught_by = "test_a_kill_at_any_step_leaves_the_old_or_the_new"


class TestWritesInPlaceBesideAReader(Planted):
    store_class = WritesInPlace
    caught_by = "test_a_reader_beside_the_writer_sees_whole_offsets"


class TestWritesInPlaceOnAFullDisk(Planted):
    store_class = WritesInPlace
    caught_by = "test_a_full_disk_is_an_error_and_keeps_the_old"


class RemovesFirst(OneFile):
    def store(self, offset):
        self.path.unlink(missing_ok=True)
        super().store(offset)


class TestRemovesTheOldOneFirst(Planted):
    store_class = RemovesFirst
    caught_by = "test_a_kill_at_any_step_leaves_the_old_or_the_new"


class DamagedIsNone(OneFile):
    def parse(self, data):
        try:
            return super().parse(data)
        except Unreadable:
            return None


class TestReadsDamageAsNothing(Planted):
    store_class = DamagedIsNone
    caught_by = "test_a_torn_file_is_refused"


class TestReadsTomorrowsVersionAsNothing(Planted):
    store_class = DamagedIsNone
    caught_by = "test_a_newer_version_is_refused"


class LeaksValueError(OneFile):
    def parse(self, data):
        return msgspec.json.decode(data, type=Offset)


class TestLeaksDecodingErrors(Planted):
    store_class = LeaksValueError
    caught_by = "test_a_damaged_file_is_refused_or_read"


class StoresLater(OneFile):
    """Keeps the offset in memory and writes it with the next one."""

    waiting = None

    def store(self, offset):
        if self.waiting is not None:
            super().store(self.waiting)
        self.waiting = offset

    def load(self):
        return self.waiting or super().load()


class TestReturnsBeforeItIsStored(Planted):
    store_class = StoresLater
    caught_by = "test_the_next_run_finds_it"


class LosesTheIndex(OneFile):
    def store(self, offset):
        position = msgspec.structs.replace(offset.sole.position, commit_lsn=0, index=0)
        super().store(offset.with_sole(position=position))


class TestLosesTheIndexInTheTransaction(Planted):
    store_class = LosesTheIndex
    caught_by = "test_what_is_stored_is_loaded"


class KeepsOnePartition(OneFile):
    def store(self, offset):
        first = dict(list(offset.partitions.items())[:1])
        super().store(msgspec.structs.replace(offset, partitions=first))


class TestKeepsTheFirstPartitionOnly(Planted):
    store_class = KeepsOnePartition
    caught_by = "test_what_is_stored_is_loaded"


class ClearsOnce(OneFile):
    def clear(self):
        self.path.unlink()


class TestClearsOnlyWhatIsThere(Planted):
    store_class = ClearsOnce
    caught_by = "test_clear_forgets"


class OneForAll(OneFile):
    def __init__(self, _properties, home):
        super().__init__(None, Path(home).parents[0] if "another" in home else home)


class TestSharesOneFile(Planted):
    store_class = OneForAll
    caught_by = "test_pipelines_keep_apart"


class Merges(OneFile):
    """Keeps what the new offset leaves at its default."""

    def store(self, offset):
        try:
            old = self.load()
        except OffsetError:
            old = None
        if old is not None and offset.snapshot is None:
            offset = msgspec.structs.replace(offset, snapshot=old.snapshot)
        super().store(offset)


class TestMergesWithTheOldOne(Planted):
    store_class = Merges
    caught_by = "test_an_offset_replaces_all_of_the_one_before"
