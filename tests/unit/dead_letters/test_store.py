"""Dead letters on disk: durable, one per event, of their owner alone."""

import stat

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltap.changes.decode.message import (
    Change,
    Delete,
    Insert,
    LogicalMessage,
    OldTuple,
    Truncate,
    Update,
)
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED
from waltap.changes.events.event import Record
from waltap.errors import SinkError
from waltap.services.dead_letters.dead_letter import (
    DeadLetter,
    EventLocation,
    change_form,
    dead_letter_of,
    of_form,
    record_form,
    record_of,
)
from waltap.services.dead_letters.store import FILE, DeadLetterStore, DeadLettersUnusable
from waltap_testing.workload import ITEMS

from .test_pieces import transaction

VALUES = st.tuples(*[st.text() | st.none() | st.sampled_from([UNCHANGED, ABSENT])] * 3)


def dead_letter(index: int, sink: str = "", **more: object) -> DeadLetter:
    place = EventLocation(commit_lsn=0x1A0, index=index)
    return dead_letter_of(sink, place, SinkError("too long"), 1_000, **more)  # type: ignore[arg-type]


def test_a_letter_is_kept_with_why_and_where(tmp_path):
    (kept,) = DeadLetterStore(tmp_path / "d").put([dead_letter(3)])
    assert DeadLetterStore(tmp_path / "d").all() == [kept]
    assert (kept.id, kept.code, kept.reason, kept.attempts) == ("1A0-3", "WT-5000", "too long", 1)
    assert str(kept.location) == "0/1A0, change 3"


def test_the_same_event_is_one_letter_however_often_it_comes(tmp_path):
    store = DeadLetterStore(tmp_path)
    store.put([dead_letter(1), dead_letter(2)])
    other = DeadLetterStore(tmp_path)  # as after a crash
    other.put([dead_letter(1)])
    store.put([dead_letter(2)])
    store.put(
        [dead_letter(1, "a"), dead_letter(1, "b")]
    )  # two sinks have dead letters of their own
    found = {each.id: each.attempts for each in store.all()}
    assert found == {"1A0-1": 2, "1A0-2": 2, "a-1A0-1": 1, "b-1A0-1": 1}


def test_a_line_that_a_crash_tore_is_nobodys(tmp_path):
    store = DeadLetterStore(tmp_path)
    store.put([dead_letter(1)])
    with (tmp_path / "letters.jsonl").open("ab") as file:
        file.write(b'{"id":"1A0-2","sink"')
    again = DeadLetterStore(tmp_path)
    assert [each.id for each in again.all()] == ["1A0-1"]
    again.put([dead_letter(3)])
    assert [each.id for each in DeadLetterStore(tmp_path).all()] == ["1A0-1", "1A0-3"]


def test_what_is_dropped_is_gone_while_another_process_adds(tmp_path):
    engine, command = DeadLetterStore(tmp_path), DeadLetterStore(tmp_path)
    engine.put([dead_letter(1), dead_letter(2)])
    assert command.drop({"1A0-1", "unknown"}) == 1
    engine.put([dead_letter(1), dead_letter(3)])
    found = {each.id: each.attempts for each in command.all()}
    assert found == {"1A0-2": 1, "1A0-1": 1, "1A0-3": 1}


def test_a_file_that_has_the_inode_of_the_replaced_one_is_read_from_its_start(tmp_path):
    engine, command, file = DeadLetterStore(tmp_path), DeadLetterStore(tmp_path), tmp_path / FILE
    engine.put([dead_letter(n) for n in range(5)])
    first = tmp_path / "first"
    first.hardlink_to(file)
    command.drop({"1A0-0"})
    command.put([dead_letter(n, "another") for n in range(5)])
    first.write_bytes(file.read_bytes())
    first.replace(file)
    engine.put([dead_letter(0)])
    assert [(each.id, each.attempts) for each in engine.all()][-1] == ("1A0-0", 1)
    assert len(engine.all()) == 10


def test_a_redelivered_letter_is_marked(tmp_path):
    store = DeadLetterStore(tmp_path)
    kept = store.put([dead_letter(1), dead_letter(2)])
    store.mark_redelivered(kept[:1], 5_000)
    assert [each.redelivered_ms for each in store.all()] == [5_000, None]
    stored = (tmp_path / "letters.jsonl").read_text()
    assert '"replayed_ms":5000' in stored, "the spelling on disk"
    store.put([dead_letter(1)])  # refused once more: not delivered any longer
    assert store.all()[0].redelivered_ms is None
    assert store.all()[0].attempts == 2


def test_nobody_else_reads_them_and_what_is_no_text_or_no_folder_is_reported(tmp_path):
    store = DeadLetterStore(tmp_path / "d")
    store.put([dead_letter(1), dead_letter(2)])
    store.drop({"1A0-2"})
    for path in (tmp_path / "d").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    (path,) = tmp_path.glob("d/*.jsonl")
    path.write_bytes(path.read_bytes().replace(b"too long", b"too l\xffng"))
    (tmp_path / "e").write_text("in the way")
    for use in (
        DeadLetterStore(tmp_path / "d").all,
        lambda: DeadLetterStore(tmp_path / "e").put([dead_letter(1)]),
    ):
        with pytest.raises(DeadLettersUnusable, match="WT-"):
            use()


@given(VALUES, VALUES, st.sampled_from(OldTuple))
def test_a_change_comes_back_as_it_was(new, old, kind):  # type: ignore[type-arg]
    part = transaction(1, 0, 0x100)
    changes: list[Change] = [
        Insert(ITEMS, 7, new),
        Update(ITEMS, 8, new, old, kind),
        Delete(ITEMS, 9, old, kind),
        Truncate((ITEMS,), 10, True, True),
        LogicalMessage(11, True, "p", b"\x00\xff"),
    ]
    for change in changes:
        form = change_form(change, part)
        made = dead_letter_of("", EventLocation(commit_lsn=1), SinkError("no"), 1, change=form)
        found = msgspec.json.decode(msgspec.json.encode(made), type=DeadLetter)
        assert found.change is not None
        back = of_form(found.change)
        assert type(back) is type(change)
        for name in change.__struct_fields__:
            one, other = getattr(back, name), getattr(change, name)
            if name in {"relation", "relations"}:
                tables = (one, other) if isinstance(one, tuple) else ((one,), (other,))
                assert all(a.same_shape(b) for a, b in zip(*tables, strict=True))
            else:
                assert one == other


@given(st.none() | st.binary(), st.none() | st.binary(), st.binary())
def test_a_record_comes_back_as_it_was(key, value, header):
    record = Record("t", key, value, (("h", header),), 3, 9)
    assert record_of(record_form(record)) == record
