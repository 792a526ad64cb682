"""The files of a pipeline's state folder: what this version writes, and what it reads of earlier ones.

tests/golden/state has the files as waltap wrote them on 2026-11-25; whoever changes a form reads these still."""

import fcntl
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from waltap.base.files.durable_file import close_to_others, private, private_folder, replace_durably
from waltap.base.files.lock_file import LockFile, holder
from waltap.base.files.store import FileStore
from waltap.changes.transactions.assembly import EarlyDeliveries
from waltap.changes.transactions.order import TransactionCounts
from waltap.changes.transactions.position import Position, Positions
from waltap.errors import ConnectionLost, SourceError, WaltapError
from waltap.pipeline.runtime.lock import PipelineLock
from waltap.pipeline.stages.new_tables import NewTables
from waltap.ports.offsets import state_folder
from waltap.ports.offsets.file_store import FileOffsetStore
from waltap.ports.offsets.gaps import CaptureGap, GapCertificates, GapEnd, RereadTable
from waltap.ports.offsets.offset import (
    BranchPositions,
    Offset,
    PartitionOffset,
    SinkProgress,
    decoded,
    encoded,
)
from waltap.ports.offsets.owned_objects import OwnedObject, OwnedObjects
from waltap.services.recording.file import RecordingMark, RecordingWriter
from waltap_sinks.changelog.progress import CaptureGapFile
from waltap_testing.crash import KillPoint, in_child
from waltap_testing.suites.offset_store import TWO

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests" / "golden" / "state"

OBJECTS = [
    OwnedObject(kind="publication", name="waltap", system_id="7", database="shöp", made=False),
    OwnedObject(
        kind="slot", name="waltap", system_id="7", database="shöp", made_at=1_700_000_000_000_000,
        newest=16_500, streams=(("public.items", 0), ("public.orders", 4096)),
    ),
]  # fmt: skip
SINKS = {
    "fast": SinkProgress(
        positions={"": Position(200, 300, 7)},
        counted=TransactionCounts(commit_lsn=300, index=7, total=7),
        sink_positions={"": Position(150)},
    ),
    "slow": SinkProgress(positions={"": Position(100)}),
}
STORED = Positions({"": Position(100)})
GAP = CaptureGap(
    identifier="7-16B374D848", pipeline="shop", database="shöp", slot="waltap", code="WT-2004",
    why="the slot is gone", begin=GapEnd(lsn="16/B374D848", timeline=1, system_id="7"),
    end=GapEnd(lsn="16/C0000000", timeline=2, system_id="7", time="2026-11-25T03:00:00.000+00:00"),
    found="2026-11-25T03:00:01.000+00:00", tables=("public.items", "public.orders"), had="16/B0000000",
    remark="public.orders has no key", reread={"public.items": RereadTable(rows=3, compared=True)},
)  # fmt: skip


def _offset(folder: Path) -> Callable[[], object]:
    store = FileOffsetStore(folder / "offset.json")
    store.store(TWO)
    return lambda: store.load() == TWO


def _objects(folder: Path) -> Callable[[], object]:
    OwnedObjects(folder / "belongings.json").keep(*reversed(OBJECTS))
    return lambda: OwnedObjects(folder / "belongings.json").all() == OBJECTS


def _sinks(folder: Path) -> Callable[[], object]:
    BranchPositions(folder / "sinks.json").store(SINKS, STORED, Positions())
    return lambda: BranchPositions(folder / "sinks.json").load(STORED) == SINKS


def _gap(folder: Path) -> Callable[[], object]:
    GapCertificates(folder).keep(GAP)
    return lambda: GapCertificates(folder).all() == [GAP]


def _prepared(folder: Path) -> Callable[[], object]:
    deliveries = EarlyDeliveries(folder / "delivered-at-prepare.json")
    deliveries.note(733, "order 'ä'", 4096)
    deliveries.note(734, "done", 4200)
    deliveries.decide(734, "done", 5000)
    deliveries.keep()

    def same() -> object:
        read = EarlyDeliveries(folder / "delivered-at-prepare.json")
        read.load(4500)
        return read.undecided() == ["order 'ä'"] and read.decide(734, "done", 5000)

    return same


def _missed(folder: Path) -> Callable[[], object]:
    for table in ("public.orders", "public.items"):
        CaptureGapFile(folder / "changelog.missed").add(table)

    def same() -> object:
        read = CaptureGapFile(folder / "changelog.missed")
        read.read()
        return vars(read)["_tables"] == {"public.items", "public.orders"}

    return same


class _Shop:
    """A connector that knows two tables and captures one."""

    def existing_tables(self) -> dict[str, tuple[str, str]]:
        return {"16401": ("public", "orders"), "16402": ("public", "items")}

    def captured_tables(self) -> dict[str, str]:
        return {"16401": "public.orders"}

    def once(self) -> AbstractContextManager[None]:
        return nullcontext()

    def estimate(self, _relation: object) -> None:
        return None


SHOP: Any = _Shop()


def _new_tables(folder: Path) -> NewTables:
    return NewTables(folder / "tables.json", "warn", lambda *_: True, lambda *_: None)


def _tables(folder: Path) -> Callable[[], object]:
    _new_tables(folder).start_over(SHOP, TWO)
    return lambda: _new_tables(folder).unknown(SHOP, TWO) == []


WRITTEN: dict[str, Callable[[Path], Callable[[], object]]] = {
    "offset.json": _offset,
    "belongings.json": _objects,
    "sinks.json": _sinks,
    f"gaps/gap-{GAP.identifier}.json": _gap,
    "delivered-at-prepare.json": _prepared,
    "changelog.missed": _missed,
    "tables.json": _tables,
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_file_has_the_bytes_of_its_form_and_is_read_again(tmp_path, name):
    reads = WRITTEN[name](tmp_path / "state")
    path = tmp_path / "state" / name
    assert path.read_bytes() == (GOLDEN / name).read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert reads()
    assert [each.name for each in path.parent.iterdir() if each.suffix == ".new"] == []


def test_the_text_of_a_gap_is_that_of_its_form(tmp_path):
    GapCertificates(tmp_path).keep(GAP)
    name = f"gaps/gap-{GAP.identifier}.txt"
    assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes()


REFUSED: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "offset.json": ("WT-6001", lambda folder: FileOffsetStore(folder / "offset.json").load()),
    "belongings.json": ("WT-6006", lambda folder: OwnedObjects(folder / "belongings.json").all()),
    "sinks.json": ("WT-6203", lambda folder: BranchPositions(folder / "sinks.json").load(STORED)),
    f"gaps/gap-{GAP.identifier}.json": ("WT-6401", lambda folder: GapCertificates(folder).all()),
}


@pytest.mark.parametrize("data", [b"", b"\xff\xfe"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_damaged_file_is_refused_by_code_and_path(tmp_path, name, data):
    code, read = REFUSED[name]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    with pytest.raises(WaltapError) as caught:
        read(tmp_path)
    assert caught.value.code == code
    assert str(path) in caught.value.advice()


@pytest.mark.parametrize("name", REFUSED)
def test_a_missing_file_is_an_empty_one(tmp_path, name):
    assert not REFUSED[name][1](tmp_path / "none")


UNWRITABLE = {
    "offset.json": ("WT-6002", _offset),
    "belongings.json": ("WT-6007", _objects),
    "sinks.json": ("WT-6002", _sinks),
    "gaps": ("WT-6401", _gap),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_a_file_that_cannot_be_written_is_refused(tmp_path, name):
    code, write = UNWRITABLE[name]
    (tmp_path / "state").touch()
    with pytest.raises(WaltapError) as caught:
        write(tmp_path / "state")
    assert caught.value.code == code


def test_a_damaged_list_of_tables_is_none(tmp_path):
    (tmp_path / "tables.json").write_bytes(b"\xff")
    assert _tables(tmp_path)(), "it is written again"


def test_a_list_of_tables_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "state").touch()
    _new_tables(tmp_path / "state").start_over(SHOP, TWO)


# --- what a pipeline has on servers: kept before it is made, found again after a kill -------------


SLOT = OwnedObject(kind="slot", name="s", system_id="1", database="d")
PUBLICATION = OwnedObject(kind="publication", name="s", system_id="1", database="d")


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "p" / "belongings.json"


def test_entries_outlive_the_process_and_are_distinguished_by_their_key(path):
    OwnedObjects(path).keep(SLOT, PUBLICATION)
    found = OwnedObjects(path)
    assert found.all() == [PUBLICATION, SLOT]
    assert found.find(*SLOT.key) == SLOT
    assert found.find("slot", "s", "2", "d") is None
    assert found.find("slot", "s", "1", "other") is None
    found.forget([SLOT])
    assert OwnedObjects(path).all() == [PUBLICATION]


def test_an_entry_is_there_before_the_block_that_makes_the_thing(path):
    with OwnedObjects(path).making(SLOT):
        assert OwnedObjects(path).all() == [SLOT]
    assert OwnedObjects(path).all() == [SLOT]


@pytest.mark.parametrize(
    ("error", "stays"), [(SourceError("no"), False), (ConnectionLost("?"), True)], ids=["no", "?"]
)
def test_what_could_not_be_made_is_forgotten_unless_nobody_knows(path, error, *, stays):
    with pytest.raises(SourceError), OwnedObjects(path).making(SLOT):
        raise error
    assert OwnedObjects(path).all() == ([SLOT] if stays else [])


# --- the offset file: in which order it is replaced, what is refused, and its stored form ---------


ONE = Offset.of(
    PartitionOffset(position=Position(1), slot="s", database="d", system_id="7", timeline=1)
)


@pytest.fixture
def store(tmp_path) -> FileOffsetStore:
    return FileOffsetStore(tmp_path / "state" / "offset.json")


def test_the_new_offset_is_on_disk_before_it_takes_the_place_of_the_old(store):
    outcome = in_child(lambda _child: store.store(ONE), KillPoint())
    assert outcome.error is None
    order = [step for step in outcome.steps if step in {"os.fsync", "os.rename"}]
    assert order == ["os.fsync", "os.rename", "os.fsync"]


# --- the stored form -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b'{"version": 2}', b'{"version": 1}', b'{"version": "2"}', b"null",
        b'{"version": 2, "partitions": {}}',
        encoded(ONE)[:-1] + b', "signals": {"queue": 7}}',
    ],
)  # fmt: skip
def test_half_an_offset_is_none(data):
    with pytest.raises(ValueError, match=r"."):
        decoded(data)


# --- positions of partitions, and of several sinks --------------------------------------------------------


def test_moving_one_leaves_the_rest_and_the_original():
    before = Positions({"a": Position(1), "b": Position(2)})
    after = before.advanced("b", Position(5))
    assert (before["b"], after["b"], after["a"]) == (Position(2), Position(5), Position(1))
    assert str(after) == "a: 0/1, b: 0/5"
    assert hash(after) == hash(Positions({"b": Position(5), "a": Position(1)}))


AHEAD = {
    "fast": SinkProgress(positions={"": Position(200)}),
    "slow": SinkProgress(positions={"": Position(100)}),
}


def at(lsn: int) -> Positions:
    return Positions({"": Position(lsn)})


@pytest.fixture
def kept(tmp_path) -> BranchPositions:
    BranchPositions(tmp_path / "sinks.json").store(AHEAD, at(100), at(90))
    return BranchPositions(tmp_path / "sinks.json")


def test_each_goes_on_from_its_own(kept):
    assert kept.load(at(100)) == AHEAD
    assert kept.load(at(150)) == AHEAD, "idle progress moves the offset alone"
    assert kept.load(at(90)) == AHEAD, "a run was killed before it stored its offset"


def test_nothing_is_left_out_behind_an_offset_that_was_set_back(kept):
    assert kept.load(at(89)) == kept.load(at(91)) == {}
    assert kept.load(Positions()) == {}


# --- files and folders of a pipeline's state are its owner's alone, whatever the umask is ---------


@pytest.fixture(autouse=True)
def _umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    paths = [folder, *folder.rglob("*")]
    return [f"{path} {path.stat().st_mode:o}" for path in paths if path.stat().st_mode & 0o077]


def test_what_is_made_is_private_with_the_folders_that_were_missing(tmp_path):
    tmp_path.chmod(0o755)
    private_folder(tmp_path / "a/b/c")
    os.close(private(tmp_path / "a/b/c/file", os.O_WRONLY | os.O_CREAT))
    replace_durably(tmp_path / "a/d/offset.json", b"{}")
    with RecordingWriter(tmp_path / "a/monday.recording") as recording:
        recording.put(RecordingMark(1))
    assert open_to_others(tmp_path / "a") == []
    assert tmp_path.stat().st_mode & 0o777 == 0o755


def test_a_file_that_is_there_is_closed_when_it_is_opened(tmp_path):
    (tmp_path / "relations").write_text("a")
    with open(tmp_path / "relations", "a", opener=private) as file:
        file.write("b")
    assert (tmp_path / "relations").read_text() == "ab"
    assert (tmp_path / "relations").stat().st_mode & 0o777 == 0o600


def test_a_state_folder_of_an_earlier_version_is_closed(tmp_path):
    state, elsewhere = tmp_path / ".waltap", tmp_path / "elsewhere"
    (state / "shop/spill").mkdir(parents=True)
    (state / "shop/spill/stream-7-1.spill").touch()
    (state / "shop/lock").touch()
    elsewhere.touch()
    (state / "shop/link").symlink_to(elsewhere)
    with PipelineLock(state / "shop"):
        (state / "shop/link").unlink()
        assert open_to_others(state) == []
    assert elsewhere.stat().st_mode & 0o077


def test_a_folder_with_more_than_states_of_pipelines_keeps_its_mode(tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "shop.toml").touch()
    with PipelineLock(tmp_path / "shop"):
        assert open_to_others(tmp_path / "shop") == []
    assert tmp_path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_files_in_a_private_folder_are_private_and_elsewhere_the_umask_decides(tmp_path, mode):
    (tmp_path / "state").mkdir(mode)
    store = FileStore(str(tmp_path / "state/spool"), None)
    store.lock("lock")
    store.publish("manifests/1", b"1")
    store.put("data/1", b"1")
    with store.create("data/2") as file:
        file.write(b"2")
    store.unlock()
    found = open_to_others(tmp_path / "state")
    assert bool(found) == (mode == 0o755)
    assert len(found) in {0, 7}, found  # each but the lock
    assert close_to_others(tmp_path / "state") is None
    assert open_to_others(tmp_path / "state") == []


def test_the_page_of_the_state_folder_names_its_files():
    names = {value for name, value in vars(state_folder).items() if name.isupper()}
    page = (ROOT / "docs/architecture.md").read_text()
    assert [
        name for name in sorted(names) if isinstance(name, str) and f"`{name}" not in page
    ] == []


def test_a_store_goes_to_another_process(tmp_path):
    """Tasks of Spark read by one."""
    store = FileStore(str(tmp_path))
    store.publish("one", b"first")
    found: FileStore = pickle.loads(pickle.dumps(store))
    assert found.read("one") == b"first"
    found.publish("two", b"second")
    assert store.read("two") == b"second"


# --- one holder of a lock file at a time; what is reported it -------------------------------------


def test_the_second_is_reported_who_holds_it_until_it_is_released(tmp_path):
    assert holder(tmp_path / "lock") is None
    assert list(tmp_path.iterdir()) == [], "a look makes no file"
    first, second = LockFile(tmp_path / "lock"), LockFile(tmp_path / "lock")
    assert (first.take(), first.take()) == (None, None)
    assert second.take() == holder(tmp_path / "lock") == str(os.getpid())
    first.release()
    first.release()
    assert holder(tmp_path / "lock") is None
    assert second.take() is None
    second.release()


def test_the_holder_is_the_process_that_holds_it_whatever_the_file_says(tmp_path):
    path = tmp_path / "lock"
    path.write_text("4711\n")
    hold = "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, 2); print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert holder(path) == LockFile(path).take() == str(other.pid)
        other.communicate(b"\n")
    assert holder(path) is None


@pytest.mark.parametrize("written", ["", "4711\n"], ids=["nothing", "a process"])
def test_where_the_kernel_does_not_say_it_the_holder_is_what_the_file_says(
    tmp_path, written, monkeypatch
):
    monkeypatch.setattr("waltap.base.files.lock_file.LOCKS", tmp_path / "none")
    first = LockFile(tmp_path / "lock")
    first.take()
    (tmp_path / "lock").write_text(written)
    assert holder(tmp_path / "lock") == (written.strip() or "unknown")
    first.release()


def test_a_lock_file_is_closed_to_others_and_names_its_holder_alone(tmp_path):
    """Whoever may open it could hold it; a shorter id leaves nothing of a longer one."""
    path = tmp_path / "lock"
    path.touch(0o644)
    path.write_text("123456789012345\n")
    lock = LockFile(path)
    for take in (lock.take, lock.take_over):
        take()
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.read_text() == f"{os.getpid()}\n"
    lock.release()


def test_a_lock_does_not_stand_where_its_folder_was_moved_or_another_file_has_its_name(tmp_path):
    folder = tmp_path / "log"
    folder.mkdir()
    lock = LockFile(folder / "lock")
    assert lock.is_current()
    lock.take()
    assert lock.is_current()
    folder.rename(tmp_path / "moved")
    assert not lock.is_current()
    folder.mkdir()
    other = LockFile(folder / "lock")
    assert other.take() is None
    assert (lock.is_current(), other.is_current()) == (False, True)
    lock.release()
    other.release()


def test_a_file_that_its_holder_removed_is_not_what_the_next_one_holds(tmp_path, monkeypatch):
    """The holder ends between the moment the next one opens the file, and its lock."""
    path = tmp_path / "lock"
    last, following = LockFile(path), LockFile(path)
    last.take()
    opened, real = [], os.open

    def then_removed(name: Path, flags: int, mode: int) -> int:
        opened.append(real(name, flags, mode))
        if len(opened) == 1:
            path.unlink()
            last.release()
        return opened[-1]

    monkeypatch.setattr(os, "open", then_removed)
    assert following.take() is None
    assert (len(opened), following.is_current()) == (2, True)
    following.release()


def test_who_only_looks_refuses_nobody(tmp_path, monkeypatch):
    """`waltap status` and others ask whether the file is held, by shutting it for a moment."""
    lock = LockFile(tmp_path / "lock")
    lock.take()
    lock.release()
    looking = os.open(lock.path, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    waited: list[float] = []

    def look_ends(seconds: float) -> None:
        waited.append(seconds)
        os.close(looking)

    monkeypatch.setattr("waltap.base.files.lock_file.time.sleep", look_ends)
    assert lock.take() is None
    assert len(waited) == 1
    assert LockFile(lock.path).take() == str(os.getpid())
    lock.release()
