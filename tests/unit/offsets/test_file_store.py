"""The offset file: replaced whole, never torn, and its faults are told."""

import os
from pathlib import Path

import msgspec
import pytest

from waltap.offsets.file_store import FileOffsetStore, OffsetUnreadable, OffsetUnwritable
from waltap.offsets.offset import (
    NEWEST_VERSION,
    Offset,
    PartitionOffset,
    SnapshotProgress,
    decoded,
    encoded,
)
from waltap.source.position import Position
from waltap_testing.crash import CrashChild, KillPoint, in_child
from waltap_testing.offset_store_suite import FULL, TWO

GOLDEN = Path(__file__).parents[2] / "golden" / "offset-1.json"


def offset(lsn: int, **more: object) -> Offset:
    made = Offset.of(
        PartitionOffset(position=Position(lsn), slot="s", database="d", system_id="7", timeline=1)
    )
    names = [name for name in more if name in PartitionOffset.__struct_fields__]
    made = made.with_sole(**{name: more.pop(name) for name in names})
    return msgspec.structs.replace(made, **more)


@pytest.fixture
def store(tmp_path: Path) -> FileOffsetStore:
    return FileOffsetStore(tmp_path / "state" / "offset.json")


def test_what_is_stored_is_loaded(store: FileOffsetStore) -> None:
    assert store.load() is None
    full = offset(
        5, snapshot=SnapshotProgress(kind="initial", lsn=3), visible="1:2:@0/5",
        signals={"queue": [], "paused": True}, previous_end_lsn=4,
    )  # fmt: skip
    store.store(full)
    assert store.load() == full
    store.store(offset(6))
    assert store.load() == offset(6)
    store.clear()
    assert store.load() is None
    store.clear()


def test_a_crash_at_any_step_leaves_the_old_or_the_new_offset(tmp_path: Path) -> None:
    """A real process that kills itself before each act that outlives it."""
    step = 0
    seen = set()
    while True:
        step += 1
        path = tmp_path / f"{step}.json"
        FileOffsetStore(path).store(offset(1))

        def action(_child: CrashChild, path: Path = path) -> None:
            FileOffsetStore(path).store(offset(2))

        outcome = in_child(action, KillPoint(step=step))
        found = FileOffsetStore(path).load()
        assert found is not None
        seen.add(found.sole.position.end_lsn)
        if not outcome.killed:
            break
    assert step > 4
    assert seen == {1, 2}
    assert found == offset(2)


def test_the_new_offset_is_on_disk_before_it_takes_the_place_of_the_old(
    store: FileOffsetStore,
) -> None:
    outcome = in_child(lambda _child: store.store(offset(2)), KillPoint())
    assert outcome.error is None
    order = [step for step in outcome.steps if step in {"os.fsync", "os.rename"}]
    assert order == ["os.fsync", "os.rename", "os.fsync"]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"{", id="torn"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"[1, 2]", id="something else"),
        pytest.param(b'{"position": {"end_lsn": "1"}}', id="wrong kinds"),
        pytest.param(
            msgspec.json.encode(offset(1)).replace(b'"version":2', b'"version":99'),
            id="of a newer waltap",
        ),
    ],
)
def test_a_file_that_is_no_offset_is_refused_by_its_path(
    store: FileOffsetStore, data: bytes
) -> None:
    store.path.parent.mkdir()
    store.path.write_bytes(data)
    with pytest.raises(OffsetUnreadable) as caught:
        store.load()
    assert caught.value.code == "WT-6001"
    assert str(store.path) in caught.value.advice()


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    store = FileOffsetStore(tmp_path / "file" / "offset.json")
    with pytest.raises(OffsetUnwritable) as caught:
        store.store(offset(1))
    assert "waltap.state.dir" in caught.value.advice()
    with pytest.raises(OffsetUnwritable):
        store.clear()


def test_a_full_disk_keeps_the_old_offset(store: FileOffsetStore) -> None:
    from waltap_testing.crash import limit_file_size

    store.store(offset(1))

    def action(child: CrashChild) -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit_file_size(10)
        try:
            store.store(offset(2))
        except OffsetUnwritable as error:
            limit_file_size(None)
            child.report(error.code)

    outcome = in_child(action, KillPoint())
    assert outcome.reports == ["WT-6002"]
    assert store.load() == offset(1)
    assert os.listdir(store.path.parent) in (
        ["offset.json"],
        ["offset.json", "offset.json.new"],
        ["offset.json.new", "offset.json"],
    )


# --- the stored form -------------------------------------------------------------------------------


def test_an_offset_of_version_1_is_read() -> None:
    """What waltap stored until partitions had names: tests/golden/offset-1.json is one with everything."""
    store = FileOffsetStore(GOLDEN)
    assert store.load() == FULL


def test_an_offset_of_version_1_is_stored_as_the_newest(tmp_path: Path) -> None:
    path = tmp_path / "offset.json"
    path.write_bytes(GOLDEN.read_bytes())
    store = FileOffsetStore(path)
    before = store.load()
    assert before is not None
    store.store(before)
    assert msgspec.json.decode(path.read_bytes())["version"] == NEWEST_VERSION == 2
    assert store.load() == before


def test_the_stored_form_is_that_of_its_version() -> None:
    """Whoever changes it gives it another number, and reads this one still."""
    golden = GOLDEN.with_name("offset-2.json")
    assert encoded(TWO) == golden.read_bytes()
    assert decoded(golden.read_bytes()) == TWO


@pytest.mark.parametrize(
    "data", [b'{"version": 2}', b'{"version": 1}', b'{"version": "2"}', b"null"]
)
def test_half_an_offset_is_none(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decoded(data)
