"""Conformance tests for offset stores.

Subclass `OffsetStoreSuite` and define the fixture ``new_rig``:

    class TestMyStore(OffsetStoreSuite):
        @pytest.fixture
        def new_rig(self):
            return lambda folder: OffsetStoreRig(MY_SPEC, MyProperties(), home=folder)
"""

import threading
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import msgspec
import pytest

from waltap.changes.transactions.order import TransactionCounts
from waltap.changes.transactions.position import Position, SnapshotProgress, TableChunks
from waltap.errors import OffsetError
from waltap.ports.offsets.offset import Offset, OffsetStore, PartitionOffset
from waltap.ports.specs import OffsetStoreSpec
from waltap_testing.crash import (
    ChildOutcome,
    CrashChild,
    KillPoint,
    chosen,
    in_child,
    limit_file_size,
    own_files,
)
from waltap_testing.damage import chance, damaged, evenly
from waltap_testing.suite import FolderRigSuite

OLD = Offset.of(
    PartitionOffset(
        position=Position(0x1000),
        slot="waltap",
        database="shop",
        system_id="7000000000000000001",
        timeline=1,
        decoder="pgoutput",
    )
)
NEW = OLD.with_sole(position=Position(0x2000, 0x2100, 17), previous_end_lsn=0x1FF0, timeline=2)
# Fields at the ends of their ranges: the largest LSN, the longest slot name, unusual characters.
FULL_PARTITION = PartitionOffset(
    position=Position((1 << 64) - 1, (1 << 64) - 2, 1_000_000_007),
    slot="slot_" + "x" * 58,
    database='shöp "x" \\ \n 漢字',
    system_id="18446744073709551615",
    timeline=(1 << 31) - 1,
    decoder="wal2json",
    slot_created_lsn=1 << 63,
    previous_end_lsn=0,
    visible_in={"16401": "751:761:@1/6D000100", "public.items": "751:761:@1/6D000100"},
    counted=TransactionCounts(
        commit_lsn=(1 << 64) - 2, index=17, total=1 << 40, collections={'public."Ödd, N"': 7}
    ),
    slot_identity="0a1b-é",
    slot_restart_lsn=(1 << 64) - 3,
    as_of_ms=(1 << 53) - 1,
    sink_position=Position((1 << 64) - 4, (1 << 64) - 3, 9),
)
FULL = Offset(
    partitions={"": FULL_PARTITION},
    snapshot=SnapshotProgress(
        kind="initial",
        lsn=0xABC,
        tables={
            "16401": TableChunks(plan='{"a": "é"}', count=9, done=(0, 3, 8)),
            "16402": TableChunks(complete=True),
        },
    ),
    signals={
        "queue": [{"schema": "public", "table": "é", "signal": "s"}],
        "chunks": {"public.é": {"last_key": ["1", None, "z"]}},
        "paused": False,
    },
    sink_identity="3f2a",
)
TWO = Offset(
    partitions={"tablets 0x0000-0x7FFF": OLD.sole, "tablets 0x8000-0xFFFF": FULL_PARTITION},
    signals={"queue": []},
    sink="jsonl:out.jsonl",
)
OFFSETS = {"usual": OLD, "in a transaction": NEW, "everything": FULL, "two partitions": TWO}
# Number of stores beside a reader; sizes in bytes at which a write is cut; cuts of a whole file.
STORES, TORN_AT, CUTS = 150, (0, 1, 40, 100, 200), 60


@dataclass(frozen=True, slots=True)
class OffsetStoreRig:
    """The offset store under test."""

    spec: OffsetStoreSpec
    properties: object
    # The pipeline's state folder, a new one for each test.
    home: Path
    _: KW_ONLY
    # The file with the offset, for stores that are one file.
    path: Path | None = None
    # False: the store forgets at the end of the process, and its summary says so.
    durable: bool = True
    # False: the plugin cannot run in a forked process.
    forks: bool = True

    def build(self, home: Path | None = None) -> OffsetStore:
        """Return a pipeline's new store in the state folder ``home``."""
        return self.spec.factory(self.properties, str(home or self.home))


class OffsetStoreSuite(FolderRigSuite):
    """Rules for every offset store."""

    needs = "an OffsetStoreRig"

    # --- life ---

    def test_nothing_is_loaded_before_anything_is_stored(self, rig: OffsetStoreRig) -> None:
        assert rig.build().load() is None

    @pytest.mark.parametrize("name", list(OFFSETS))
    def test_what_is_stored_is_loaded(self, rig: OffsetStoreRig, name: str) -> None:
        """Every field is loaded as stored, also at its limits."""
        store = rig.build()
        store.store(OFFSETS[name])
        assert store.load() == OFFSETS[name]
        assert store.load() == OFFSETS[name], "loading changed it"

    def test_the_next_run_finds_it(self, rig: OffsetStoreRig) -> None:
        """Another store object, as in another process, loads the offset."""
        if not rig.durable:
            pytest.skip("forgets at the end of the process")
        rig.build().store(FULL)
        assert rig.build().load() == FULL

    def test_what_another_process_stored_is_loaded(self, rig: OffsetStoreRig) -> None:
        """`load` reads the store again: a standby process opens it early."""
        if not rig.durable:
            pytest.skip("forgets at the end of the process")
        one, other = rig.build(), rig.build()
        one.store(OLD)
        assert one.load() == OLD
        other.store(FULL)
        assert one.load() == FULL
        other.clear()
        assert one.load() is None
        one.store(OLD)
        assert rig.build().load() == OLD, "it knew better what is stored"

    def test_an_offset_replaces_all_of_the_one_before(self, rig: OffsetStoreRig) -> None:
        store = rig.build()
        for offset in (FULL, OLD, TWO, NEW, FULL, NEW):
            store.store(offset)
            assert store.load() == offset

    def test_clear_forgets(self, rig: OffsetStoreRig) -> None:
        """A cleared store is empty; clearing twice is allowed."""
        store = rig.build()
        store.clear()
        store.store(OLD)
        store.clear()
        store.clear()
        assert store.load() is None
        if rig.durable:
            assert rig.build().load() is None
        store.store(NEW)
        assert store.load() == NEW

    def test_pipelines_keep_apart(self, rig: OffsetStoreRig, tmp_path: Path) -> None:
        if rig.path is not None and rig.path.parent != rig.home:
            pytest.skip("the properties name one file for everything")
        one, other = rig.build(), rig.build(tmp_path / "another pipeline")
        one.store(OLD)
        assert other.load() is None
        other.store(NEW)
        other.clear()
        assert one.load() == OLD

    def test_a_newer_version_is_refused(self, rig: OffsetStoreRig) -> None:
        if not rig.durable:
            pytest.skip("forgets at the end of the process")
        with pytest.raises(OffsetError):  # noqa: PT012 - either step may refuse it
            rig.build().store(msgspec.structs.replace(OLD, version=99))
            rig.build().load()

    # --- faults ---

    def test_a_kill_at_any_step_leaves_the_old_or_the_new(self, rig: OffsetStoreRig) -> None:
        if not (rig.durable and rig.forks):
            pytest.skip("forgets at the end of the process, or cannot be forked")
        rig.build().store(OLD)
        counted = _in_child(rig, KillPoint())
        assert counted.error is None, counted.error
        for step in chosen(counted.steps):
            self._kill(rig, KillPoint(step=step), f"killed before {counted.steps[step - 1]}")

    def test_a_kill_inside_a_write_leaves_the_old_or_the_new(self, rig: OffsetStoreRig) -> None:
        if not (rig.durable and rig.forks):
            pytest.skip("forgets at the end of the process, or cannot be forked")
        for size in TORN_AT:
            self._kill(rig, KillPoint(at_bytes=size), f"torn at byte {size}")

    @staticmethod
    def _kill(rig: OffsetStoreRig, point: KillPoint, at: str) -> None:
        rig.build().store(OLD)
        outcome = _in_child(rig, point)
        # Once `store` has returned, the engine may confirm the position: the old offset is wrong
        # then.
        expected = (NEW,) if outcome.reports else (OLD, NEW)
        assert rig.build().load() in expected, at

    def test_a_full_disk_is_an_error_and_keeps_the_old(self, rig: OffsetStoreRig) -> None:
        """On a full disk `store` stores, or raises OffsetError. The old offset stays then."""
        if not (rig.durable and rig.forks):
            pytest.skip("forgets at the end of the process, or cannot be forked")
        rig.build().store(OLD)

        def act(child: CrashChild) -> None:
            limit_file_size(0)
            try:
                rig.build().store(NEW)
            except OffsetError:
                child.report("refused")
            else:
                child.report("stored")

        outcome = in_child(act, KillPoint())
        assert outcome.error is None, f"only an OffsetError may come out:\n{outcome.error}"
        expected = OLD if outcome.reports == ["refused"] else NEW
        assert rig.build().load() == expected

    def test_a_reader_beside_the_writer_sees_whole_offsets(self, rig: OffsetStoreRig) -> None:
        """A reader beside a store sees whole offsets.

        `waltap offsets show` reads beside a running pipeline.
        """
        if not rig.durable:
            pytest.skip("forgets at the end of the process")
        rig.build().store(OLD)
        writer = threading.Thread(target=_alternate, args=(rig.build(),))
        writer.start()
        seen = []
        try:
            while writer.is_alive():
                seen.append(rig.build().load())
        finally:
            writer.join()
        assert seen
        assert all(offset in (OLD, FULL) for offset in seen)

    def test_a_torn_file_is_refused(self, rig: OffsetStoreRig) -> None:
        path = self._file(rig)
        complete = path.read_bytes()
        for size in evenly(range(len(complete)), CUTS):
            path.write_bytes(complete[:size])
            try:
                found = rig.build().load()
            except OffsetError:
                continue
            assert found == FULL, f"the first {size} of {len(complete)} bytes: loaded {found}"

    def test_a_damaged_file_is_refused_or_read(self, rig: OffsetStoreRig) -> None:
        path = self._file(rig)
        complete = path.read_bytes()
        for _, data in damaged(complete, 200, chance("offset")):
            path.write_bytes(data)
            with suppress(OffsetError):
                rig.build().load()

    def test_a_damaged_file_can_be_cleared(self, rig: OffsetStoreRig) -> None:
        path = self._file(rig)
        path.write_bytes(b"\0\0\0")
        rig.build().clear()
        assert rig.build().load() is None

    @staticmethod
    def _file(rig: OffsetStoreRig) -> Path:
        if rig.path is None:
            pytest.skip("is not one file")
        rig.build().store(FULL)
        return rig.path


def _in_child(rig: OffsetStoreRig, point: KillPoint) -> ChildOutcome:
    """Store `NEW` in a child that dies at ``point``, and report it."""

    def act(child: CrashChild) -> None:
        rig.build().store(NEW)
        child.report("stored")
        child.mark("return")

    return in_child(act, point, own=own_files(rig.spec.factory))


def _alternate(store: OffsetStore) -> None:
    for number in range(STORES):
        store.store(OLD if number % 2 else FULL)
