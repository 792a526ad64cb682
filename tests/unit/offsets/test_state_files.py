"""The files of a pipeline's state folder: what this version writes, and what it reads of earlier ones.

tests/golden/state has the files as waltap wrote them on 2026-11-25; whoever changes a form reads these still.
"""

import stat
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from waltap.changes.transactions.assembly import EarlyDeliveries
from waltap.changes.transactions.order import TransactionCounts
from waltap.changes.transactions.position import Position, Positions
from waltap.errors import WaltapError
from waltap.pipeline.stages.new_tables import NewTables
from waltap.ports.offsets.file_store import FileOffsetStore
from waltap.ports.offsets.gaps import CaptureGap, GapCertificates, GapEnd, RereadTable
from waltap.ports.offsets.offset import BranchPositions, SinkProgress
from waltap.ports.offsets.owned_objects import OwnedObject, OwnedObjects
from waltap_sinks.changelog.progress import CaptureGapFile
from waltap_testing.offset_store_suite import TWO

GOLDEN = Path(__file__).parents[2] / "golden" / "state"

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
    BranchPositions(folder / "sinks.json").store(SINKS, STORED)
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
def test_a_file_has_the_bytes_of_its_form_and_is_read_again(tmp_path: Path, name: str) -> None:
    reads = WRITTEN[name](tmp_path / "state")
    path = tmp_path / "state" / name
    assert path.read_bytes() == (GOLDEN / name).read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert reads()
    assert [each.name for each in path.parent.iterdir() if each.suffix == ".new"] == []


def test_the_text_of_a_gap_is_that_of_its_form(tmp_path: Path) -> None:
    GapCertificates(tmp_path).keep(GAP)
    name = f"gaps/gap-{GAP.identifier}.txt"
    assert (tmp_path / name).read_bytes() == (GOLDEN / name).read_bytes()


REFUSED: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "offset.json": ("WT-6001", lambda folder: FileOffsetStore(folder / "offset.json").load()),
    "belongings.json": ("WT-6006", lambda folder: OwnedObjects(folder / "belongings.json").all()),
    "sinks.json": ("WT-6203", lambda folder: BranchPositions(folder / "sinks.json").load(STORED)),
    f"gaps/gap-{GAP.identifier}.json": ("WT-6401", lambda folder: GapCertificates(folder).all()),
}


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"7"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_damaged_file_is_refused_by_code_and_path(tmp_path: Path, name: str, data: bytes) -> None:
    code, read = REFUSED[name]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    with pytest.raises(WaltapError) as caught:
        read(tmp_path)
    assert caught.value.code == code
    assert str(path) in caught.value.advice()


@pytest.mark.parametrize("name", REFUSED)
def test_a_missing_file_is_an_empty_one(tmp_path: Path, name: str) -> None:
    assert not REFUSED[name][1](tmp_path / "none")


UNWRITABLE = {
    "offset.json": ("WT-6002", _offset),
    "belongings.json": ("WT-6007", _objects),
    "sinks.json": ("WT-6203", _sinks),
    "gaps": ("WT-6401", _gap),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_a_file_that_cannot_be_written_is_refused(tmp_path: Path, name: str) -> None:
    code, write = UNWRITABLE[name]
    (tmp_path / "state").touch()
    with pytest.raises(WaltapError) as caught:
        write(tmp_path / "state")
    assert caught.value.code == code


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"7"])
def test_a_damaged_list_of_tables_is_none(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tables.json").write_bytes(data)
    assert _tables(tmp_path)(), "it is written again"


def test_a_list_of_tables_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "state").touch()
    _new_tables(tmp_path / "state").start_over(SHOP, TWO)
