"""Messages to transactions: what is handed out when, what is dropped, what survives a restart."""

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from waltap.changes.decode import (
    ABSENT,
    UNCHANGED,
    Begin,
    BeginPrepare,
    Column,
    Commit,
    CommitPrepared,
    DataType,
    Delete,
    Insert,
    InsertBlock,
    LogicalMessage,
    Message,
    OldTuple,
    Origin,
    Prepare,
    Relation,
    RollbackPrepared,
    Skipped,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Update,
)
from waltap.changes.transactions.assembly import (
    PreparedTransactionLost,
    TransactionAssembler,
)
from waltap.changes.transactions.position import START, Position
from waltap.changes.transactions.spill import (
    CHUNK_CHANGES,
    LEAST_ROWS,
    MANY_CHANGES,
    PART_CHANGES,
    SpillFailed,
)
from waltap.changes.transactions.transaction import TransactionPart
from waltap.errors import DecodeError
from waltap_testing.sinks.crash import full_disk

TABLE = Relation(
    oid=1,
    schema="public",
    table="t",
    columns=(
        Column(name="id", type_oid=23, in_identity=True),
        Column(
            name="v",
            type_oid=25,
            data_type=DataType(oid=25, schema="pg_catalog", name="text", labels=("a",)),
        ),
    ),
)

OTHER = Relation(oid=2, schema="public", table="o", columns=TABLE.columns[:1])


def row(number: int, xid: int = 0) -> Insert:
    return Insert(TABLE, 1000 + number, (str(number), "v"), xid)


def numbers(parts: Iterable[TransactionPart]) -> list[int]:
    return [int(c.new[0]) for part in parts for c in part.changes if isinstance(c, Insert)]


MADE: list[TransactionAssembler] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    yield
    while MADE:
        MADE.pop().close()


def assembler(
    folder: Path | None = None,
    *,
    resume: Position = START,
    previous: int | None = None,
    memory: int = 1 << 20,
    **options: str,
) -> TransactionAssembler:
    MADE.append(TransactionAssembler(resume, previous, folder, memory, **options))
    return MADE[-1]


def drained(subject: TransactionAssembler, messages: Iterable[Message]) -> list[TransactionPart]:
    parts = subject.feed(list(messages))
    while subject.backlog:
        parts += subject.feed(())
    return parts


def ordinary(commit: int, changes: Iterable[Message], xid: int = 7) -> list[Message]:
    return [
        Begin(commit - 9, xid, commit, 55),
        *changes,
        Commit(commit + 1, commit, commit + 1, 55, xid),
    ]


# --- ordinary transactions -----------------------------------------------------------------------


def test_a_message_between_transactions_counts_as_a_commit_at_its_place():
    message = LogicalMessage(150, False, "p", b"c")
    parts = assembler().feed([*ordinary(100, []), message, *ordinary(200, [row(1)])])
    assert [(p.xid, p.previous_end_lsn, p.end_lsn) for p in parts] == [
        (7, None, 101),
        (None, 150, 150),
        (7, 150, 201),
    ]
    assert parts[1].changes == [message]


def test_origin_belongs_to_its_transaction_alone():
    one = ordinary(100, [Origin(0, "elsewhere", 5), row(1)])
    first, second = assembler().feed([*one, *ordinary(200, [row(2)])])
    assert (first.origin, first.origin_lsn) == ("elsewhere", 5)
    assert (second.origin, second.origin_lsn) == (None, None)


def test_a_begin_without_lsn_starts_where_its_first_change_is():
    (part,) = assembler().feed([Begin(0, 7, 100, 5), row(3), Commit(101, 100, 101, 5, 7)])
    assert part.begin_lsn == 1003


# --- resume --------------------------------------------------------------------------------------


def test_messages_before_the_resume_position_are_dropped():
    subject = assembler(resume=Position(150))
    old, new = (LogicalMessage(lsn, False, "p", b"") for lsn in (150, 151))
    assert [part.end_lsn for part in subject.feed([old, new])] == [151]


@pytest.mark.parametrize("delivered", [1, 3, 4])
def test_a_resume_inside_a_transaction_delivers_the_rest(delivered):
    subject = assembler(resume=Position(50, 100, delivered))
    (part,) = subject.feed(ordinary(100, [row(n) for n in range(4)]))
    assert numbers([part]) == [*range(delivered, 4)]
    assert (part.first_index, part.starts, part.complete) == (delivered, False, True)


# --- streamed in progress ------------------------------------------------------------------------


def segment(xid: int, changes: Iterable[Message], *, first: bool = False) -> list[Message]:
    return [StreamStart(5, xid, first), *changes, StreamStop(6)]


@pytest.fixture(params=["memory", "disk"])
def memory(request) -> int:
    return 1 << 20 if request.param == "memory" else 0


def test_every_kind_of_change_survives_a_buffer(tmp_path, memory):
    changes: list[Message] = [
        Insert(TABLE, 1, ("1", None), 7),
        Insert(TABLE, 2, (b"\0\xff", UNCHANGED), 7),
        Update(TABLE, 3, ("1", UNCHANGED), xid=7),
        Update(TABLE, 4, ("1", "é"), ("0", ABSENT), OldTuple.KEY, 7),
        Update(TABLE, 5, ("1", "x"), ("0", None), OldTuple.FULL, 7),
        Delete(TABLE, 6, ("1", ABSENT), OldTuple.KEY, 7),
        Delete(TABLE, 7, (), OldTuple.NONE, 7),
        Truncate((TABLE, TABLE), 8, True, False, 7),
        Truncate((TABLE,), 9, False, True, 7),
        LogicalMessage(10, True, "präfix", b"\0\xff", 7),
    ]
    subject = assembler(tmp_path, memory=memory)
    subject.feed(segment(7, changes, first=True))
    (part,) = subject.feed([StreamCommit(0, 7, 100, 101, 0)])
    assert part.changes == changes
    assert all(c.relation is TABLE for c in part.changes if isinstance(c, Insert))


def test_inserts_of_a_large_transaction_are_columns_and_others_stay_rows(tmp_path, memory):
    few = [row(n, 7) for n in range(LEAST_ROWS)]
    odd = [
        [*few[:-1], Insert(TABLE, 1, (b"\xff", "v"), 7)],
        [*few[:-1], Insert(TABLE, 1, ("1", UNCHANGED), 7)],
        [*few[:-1], Delete(TABLE, 1, ("1", None), OldTuple.FULL, 7)],
        [*few[:-1], Insert(OTHER, 1, ("1",), 7)],
        few[:-1],
    ]
    subject = assembler(tmp_path, memory=memory)
    subject.feed(segment(7, few, first=True))
    subject.feed(segment(7, [row(n, 7) for n in range(MANY_CHANGES)], first=False))
    sent = [[*few[:-1], Insert(TABLE, 1, ("é", None), 7)], *odd, few]
    for some in sent:
        subject.feed(segment(7, some, first=False))
    parts = drained(subject, [StreamCommit(0, 7, 100, 101, 0)])
    head, *rest = parts
    assert list(head.changes[:LEAST_ROWS]) == few
    assert not isinstance(head.changes, InsertBlock), "a small transaction is quicker as rows"
    blocks = [list(part.changes) for part in rest if isinstance(part.changes, InsertBlock)]
    assert blocks == [sent[0], few]
    found = [change for part in rest for change in part.changes]
    assert found[-sum(map(len, sent)) :] == [change for some in sent for change in some]


def test_memory_is_given_to_the_disk_largest_first(tmp_path):
    subject = assembler(tmp_path, memory=20_000)
    subject.feed(segment(7, [row(n, 7) for n in range(100)], first=True))
    assert list(tmp_path.iterdir()) == []
    subject.feed(segment(8, [row(n, 8) for n in range(2000)], first=True))
    assert [path.name.rpartition("-")[0] for path in tmp_path.iterdir()] == ["stream-8"]
    assert numbers(drained(subject, [StreamCommit(0, 8, 100, 101, 0)])) == list(range(2000))
    assert list(tmp_path.iterdir()) == []


def test_a_large_transaction_comes_in_parts_of_bounded_size(tmp_path, memory):
    """What comes behind it waits."""
    count = 3 * PART_CHANGES + 10
    subject = assembler(tmp_path, memory=memory)
    for start in range(0, count, 1000):
        rows = [row(n, 7) for n in range(start, min(start + 1000, count))]
        subject.feed(segment(7, rows, first=start == 0))
    assert subject.idle, "streams in progress do not hold the position"
    assert subject.open_transactions == 1
    parts = subject.feed([StreamCommit(0, 7, 100, 101, 0), *ordinary(200, [row(-1)])])
    parts += subject.feed(ordinary(300, [row(-2)]))
    assert subject.backlog
    assert not subject.idle
    most = 0
    while subject.backlog:
        more = subject.feed(())
        most = max(most, sum(len(part.changes) for part in more))
        parts += more
    assert most <= PART_CHANGES + CHUNK_CHANGES + 2
    assert numbers(parts) == [*range(count), -1, -2]
    assert [p.complete for p in parts] == [False] * (len(parts) - 3) + [True] * 3
    assert [p.first_index for p in parts[:-2]] == [
        sum(len(before.changes) for before in parts[:at]) for at in range(len(parts) - 2)
    ]


# --- commit position not known in advance --------------------------------------------------------


def test_a_transaction_whose_commit_is_unknown_waits_for_it(tmp_path, memory):
    subject = assembler(tmp_path, memory=memory)
    assert subject.feed([Begin(5, 7, 0, 44), row(1)]) == []
    assert not subject.idle
    assert subject.feed([row(2)]) == []
    (part,) = subject.feed([Commit(99, 0, 101, 0, 7)])
    assert (part.xid, part.commit_lsn, part.end_lsn, part.commit_ts) == (7, 101, 101, 44)
    assert part.begin_lsn == 5
    assert numbers([part]) == [1, 2]


# --- prepared transactions -----------------------------------------------------------------------


def prepared(gid: str, rows: Iterable[Message], xid: int = 7, end: int = 51) -> list[Message]:
    return [
        BeginPrepare(5, xid, end - 1, end, 33, gid),
        *rows,
        Prepare(end, xid, end - 1, end, 33, gid),
    ]


def decided(gid: str, xid: int = 7, end: int = 101) -> CommitPrepared:
    return CommitPrepared(end, xid, end - 1, end, 44, gid)


FOUR = prepared("g", [row(n) for n in range(4)])
ONE, DECIDED = prepared("g", [row(1)]), [decided("g")]
ROLLED_BACK = RollbackPrepared(0, 7, 51, 101, 0, 0, "g")
STREAMED = [*segment(7, [row(1, 7)], first=True), StreamPrepare(0, 7, 50, 51, 33, "g")]
AT_COMMIT, AT_PREPARE = (7, 100, 101, 44, [1]), (7, 50, 51, 33, [1])
WITHOUT_ROWS = (7, 100, 101, 44, [])
LIVES: dict[str, list[tuple[Any, ...]]] = {
    "delivered at its commit": [
        (START, "commit", [*ONE, *ordinary(60, [row(2)], 8)], [(8, 60, 61, 55, [2])], 1, DECIDED, [AT_COMMIT], 0),
    ],
    "sent in progress": [(START, "commit", STREAMED, [], 1, DECIDED, [AT_COMMIT], 0)],
    "committed, and that was not durable": [
        (START, "commit", [*ONE, *DECIDED], [AT_COMMIT], 0), (Position(51), "commit", DECIDED, [AT_COMMIT], 0),
    ],
    "sent again": [
        (START, "commit", ONE, [], 1), (Position(40), "commit", ONE, [], 1, DECIDED, [AT_COMMIT], 0),
    ],
    "delivered at PREPARE": [
        (START, "prepare", ONE, [AT_PREPARE], 0, DECIDED, [], 0, [RollbackPrepared(0, 8, 1, 2, 0, 0, "h")], [], 0),
    ],
    "delivered at PREPARE by the life before, and again as that was not durable": [
        (START, "prepare", ONE, [AT_PREPARE], 0),
        *[(Position(51), "commit", DECIDED, [WITHOUT_ROWS], 0)] * 2,
    ],
    "delivered at PREPARE, which was not durable": [
        (START, "prepare", ONE, [AT_PREPARE], 0), (Position(40), "commit", ONE, [], 1, DECIDED, [AT_COMMIT], 0),
    ],
    "delivered in part at PREPARE": [
        (START, "prepare", ONE, [AT_PREPARE], 0),
        (Position(40, 50, 2), "commit", FOUR, [(7, 50, 51, 33, [2, 3])], 0, DECIDED, [WITHOUT_ROWS], 0),
    ],
    "prepared before the slot decoded it": [(Position(60), "commit", ONE, [], 1, DECIDED, [AT_COMMIT], 0)],
    "and with the other policy": [(Position(60), "prepare", ONE, [], 1, DECIDED, [AT_COMMIT], 0)],
    "and delivered in part": [
        (Position(60, 100, 2), "prepare", [*FOUR, *DECIDED], [(7, 100, 101, 44, [2, 3])], 0),
    ],
    "kept under one policy, and sent again under the other": [
        (START, "commit", ONE, [], 1), (Position(40), "prepare", ONE, [AT_PREPARE], 0, DECIDED, [], 0),
    ],
    "kept under one policy, decided under the other": [
        (START, "commit", ONE, [], 1), (Position(60), "prepare", DECIDED, [AT_COMMIT], 0),
    ],
}  # fmt: skip
"""What becomes of a prepared transaction: of each life position, policy, and then messages, what is delivered,
and how many transactions wait."""


@pytest.mark.parametrize("ends", ["closed", "killed"])
@pytest.mark.parametrize("story", LIVES)
def test_a_prepared_transaction_is_delivered_once(tmp_path, story, ends, memory):
    for number, (resume, policy, *turns) in enumerate(LIVES[story], 1):
        subject = assembler(tmp_path, resume=resume, previous=7, memory=memory, two_phase=policy)
        made: list[TransactionPart] = []
        for messages, delivered, waiting in zip(turns[::3], turns[1::3], turns[2::3], strict=True):
            parts = subject.feed(messages)
            found = [(p.xid, p.commit_lsn, p.end_lsn, p.commit_ts, numbers([p])) for p in parts]
            assert found == delivered
            assert all(p.complete and p.starts is (not p.first_index) for p in parts)
            assert subject.idle
            assert subject.open_transactions == waiting
            made += parts
        assert not made or made[0].previous_end_lsn == 7
        if number == 1 and resume == Position(60):
            assert list(tmp_path.iterdir()) == [], "nothing of it need survive a restart"
        if number == len(LIVES[story]):
            subject.confirmable(101)
        subject.secure()
        if ends == "closed":
            subject.close()
    assert list(tmp_path.iterdir()) == []
    later = assembler(tmp_path, resume=Position(101))
    assert later.undecided == []
    assert later.feed(DECIDED) == []


def test_a_rolled_back_one_is_forgotten_and_its_gid_used_again(tmp_path):
    subject = assembler(tmp_path)
    subject.feed(prepared("g", [row(1)]))
    assert subject.feed([ROLLED_BACK]) == []
    assert subject.open_transactions == 0
    assert list(tmp_path.iterdir()) == []
    for number in (1, 2):
        end = 100 * number
        messages = prepared("g", [row(number)], xid=number, end=end)
        assert numbers(subject.feed([*messages, decided("g", number, end + 50)])) == [number]


def test_prepared_rows_survive_a_restart(tmp_path):
    first = assembler(tmp_path)
    changes = [Origin(0, "there", 9), row(1), Update(TABLE, 3, ("1", UNCHANGED))]
    first.feed(prepared("gid 'x", changes))
    first.close()
    second = assembler(tmp_path, resume=Position(60))
    assert second.open_transactions == 1
    (part,) = second.feed([decided("gid 'x")])
    assert part.changes[0].new == ("1", "v")
    assert part.changes[1].new == ("1", UNCHANGED)
    assert part.changes[0].relation.same_shape(TABLE)
    assert (part.origin, part.origin_lsn, part.begin_lsn) == ("there", 9, 5)


def test_files_of_a_durable_commit_are_removed_at_once_or_at_the_next_start(tmp_path):
    subject = assembler(tmp_path)
    subject.feed([*prepared("one", [row(1)]), decided("one")])
    assert subject.confirmable(100) == 100
    assert len(list(tmp_path.iterdir())) == 2
    assert subject.confirmable(101) == 101
    assert list(tmp_path.iterdir()) == []
    subject.feed([*prepared("two", [row(1)], end=151), decided("two", end=201)])
    subject.close()
    again = assembler(tmp_path, resume=Position(201))
    assert again.open_transactions == 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("deleted", ["before PREPARE", "after PREPARE"])
def test_deleted_files_end_the_run_or_are_an_error_of_the_next(tmp_path, deleted):
    """Rows come again from the server where their PREPARE was not confirmed, else from the open file."""
    folder = tmp_path / "spill"
    first = assembler(folder, memory=0)
    first.feed(segment(7, [row(n, 7) for n in range(2000)], first=True))
    prepare = StreamPrepare(0, 7, 50, 51, 3, "g")
    if deleted == "before PREPARE":
        shutil.rmtree(folder)
        with pytest.raises(SpillFailed, match="WT-3101"):
            first.feed([prepare])
        first.close()
        again = assembler(folder, resume=Position(40), memory=0)
        again.feed(segment(7, [row(n, 7) for n in range(2000)], first=True))
        assert numbers(drained(again, [prepare, decided("g")])) == list(range(2000))
        return
    first.feed([prepare])
    shutil.rmtree(folder)
    assert first.confirmable(60) == 60
    assert numbers(drained(first, [decided("g")])) == list(range(2000))
    first.close()
    with pytest.raises(PreparedTransactionLost, match="WT-3102"):
        assembler(folder, resume=Position(60)).feed([decided("g")])


def test_rows_that_are_gone_are_an_error_unless_they_were_delivered(tmp_path):
    with pytest.raises(PreparedTransactionLost, match="WT-3102 .*'g'"):
        assembler(tmp_path, resume=Position(60)).feed([decided("g")])
    assert assembler(tmp_path, resume=Position(101)).feed([decided("g")]) == []


def delivered_at_prepare(folder: Path) -> Path:
    """Deliver ``g`` at PREPARE, as far as a flush; the process ends without another word."""
    first = assembler(folder, two_phase="prepare")
    assert numbers(first.feed(prepared("g", [row(1)]))) == [1]
    first.secure()
    return folder


def test_a_decision_that_is_durable_is_forgotten_at_the_next_start(tmp_path):
    delivered_at_prepare(tmp_path)
    subject = assembler(tmp_path, resume=Position(51))
    subject.feed([decided("g")])
    subject.secure()
    later = assembler(tmp_path, resume=Position(101))
    with pytest.raises(PreparedTransactionLost):  # another of that name, in another time
        later.feed([decided("g", end=201)])


@pytest.mark.parametrize(
    ("policy", "delivered", "fate"),
    [
        ("commit", True, [ROLLED_BACK]),
        ("prepare", True, [ROLLED_BACK]),
        ("prepare", False, DECIDED),
        ("commit", True, [*ONE, ROLLED_BACK]),
    ],
    ids=[
        "rolled back",
        "rolled back under prepare",
        "nothing is known of it",
        "sent by another slot",
    ],
)
def test_a_fate_that_contradicts_what_was_delivered_is_reported(tmp_path, policy, delivered, fate):
    reported: list[str] = []
    if delivered:
        delivered_at_prepare(tmp_path)
    subject = TransactionAssembler(
        Position(51),
        None,
        tmp_path,
        1,
        two_phase=policy,
        warn=lambda text, gid: reported.append(gid),
    )
    assert subject.feed(fate) == []
    assert (reported, subject.undecided) == (["g"], [])
    subject.confirmable(101)
    assert list(tmp_path.iterdir()) == []
    subject.close()


@pytest.mark.parametrize("policy", ["commit", "prepare"])
@pytest.mark.parametrize("kept", ["sent by another slot", "kept by an earlier version"])
def test_rows_that_were_delivered_at_prepare_do_not_come_at_the_commit(tmp_path, policy, kept):
    delivered_at_prepare(tmp_path)
    if kept == "kept by an earlier version":
        assembler(tmp_path, resume=Position(40)).feed(ONE)
    subject = assembler(tmp_path, resume=Position(51), two_phase=policy)
    if kept == "sent by another slot":
        assert subject.feed(ONE) == []
    assert subject.open_transactions == 1
    assert numbers(subject.feed(DECIDED)) == []
    assert (subject.undecided, subject.open_transactions) == ([], 0)
    subject.confirmable(101)
    assert list(tmp_path.iterdir()) == []
    subject.close()


@pytest.mark.parametrize("policy", ["commit", "prepare"])
def test_a_new_slot_ends_what_was_prepared_before_it(tmp_path, policy):
    """It does not show what became of that, or sends it as a whole."""
    delivered_at_prepare(tmp_path)
    assembler(tmp_path, resume=Position(51)).feed(prepared("kept", [row(2)], 8, end=60))
    reported: list[str] = []
    subject = TransactionAssembler(
        Position(70), None, tmp_path, 1, slot_lsn=70, two_phase=policy, warn=lambda _, gid: reported.append(gid)
    )  # fmt: skip
    assert (reported, subject.undecided, subject.open_transactions) == (["g"], [], 0)
    subject.confirmable(70)
    assert list(tmp_path.iterdir()) == []
    assert numbers(subject.feed([*ONE, *DECIDED])) == [1]
    subject.close()


@pytest.mark.parametrize("data", [b"{", b'[{"gid": "\xff"}]'])
def test_a_damaged_list_of_what_was_delivered_is_an_error(tmp_path, data):
    (file,) = delivered_at_prepare(tmp_path).iterdir()
    file.write_bytes(data)
    with pytest.raises(SpillFailed, match="WT-3101"):
        assembler(tmp_path, resume=Position(51))


def test_without_a_folder_prepared_transactions_hold_back_the_confirmed_position():
    subject = assembler(None)
    subject.feed(prepared("g", [row(1)]))
    assert subject.confirmable(80) == 50
    assert numbers(subject.feed([decided("g")])) == [1]
    assert subject.confirmable(101) == 101


# --- the folder ----------------------------------------------------------------------------------


def test_spill_files_are_removed_at_the_end_or_by_the_next_run(tmp_path):
    closed = assembler(tmp_path, memory=0)
    closed.feed(segment(7, [row(1, 7)], first=True))
    closed.close()
    closed.close()
    assert list(tmp_path.iterdir()) == []
    killed = assembler(tmp_path, memory=0)
    killed.feed(segment(7, [row(1, 7)], first=True))
    assert list(tmp_path.iterdir())
    assembler(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_used_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    subject = assembler(blocked / "spill", memory=0)
    with pytest.raises(SpillFailed, match="WT-3101"):
        subject.feed(segment(7, [row(1, 7)], first=True))


def test_a_full_disk_is_named_and_nothing_stays_there(tmp_path):
    """Closing the file writes what its buffer still holds, and must not hide the error."""
    subject = assembler(tmp_path, memory=0)
    subject.feed(segment(7, [row(1, 7)], first=True))
    with full_disk():
        with pytest.raises(SpillFailed, match="WT-3101"):
            for number in range(5000):
                subject.feed(segment(7, [row(number, 7)]))
        subject.close()
    assert list(tmp_path.iterdir()) == []


def cut_record(folder: Path) -> None:
    (record,) = folder.glob("*.record")
    record.write_bytes(record.read_bytes()[:-3])


def cut_rows(folder: Path) -> None:
    (rows,) = folder.glob("*.spill")
    rows.write_bytes(rows.read_bytes()[:-1])


def missing_rows(folder: Path) -> None:
    (rows,) = folder.glob("*.spill")
    rows.unlink()


@pytest.mark.parametrize("confirmed", [40, 60])
@pytest.mark.parametrize("damage", [cut_record, cut_rows, missing_rows])
def test_a_damaged_or_missing_file_of_a_prepared_transaction_is_named(tmp_path, damage, confirmed):
    """The remedy leads on: without the record, rows come again, or their loss is named."""
    subject = assembler(tmp_path)
    subject.feed(prepared("g", [row(1)]))
    subject.close()
    damage(tmp_path)
    with pytest.raises(SpillFailed, match="WT-3101") as refused:
        assembler(tmp_path)
    assert "remove the .record" in refused.value.remedy
    (record,) = tmp_path.glob("*.record")
    record.unlink()
    again = assembler(tmp_path, resume=Position(confirmed))
    if confirmed == 40:
        assert numbers(again.feed([*prepared("g", [row(1)]), decided("g")])) == [1]
    else:
        with pytest.raises(PreparedTransactionLost, match="WT-3102"):
            again.feed([decided("g")])


# --- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param([row(1)], id="row-alone"),
        pytest.param([Commit(1, 1, 2, 0)], id="commit-alone"),
        pytest.param([Begin(1, 1, 9, 0), Begin(1, 2, 10, 0)], id="begin-twice"),
        pytest.param([StreamStop(1)], id="stop-alone"),
        pytest.param([StreamCommit(1, 7, 1, 2, 0)], id="unknown-stream"),
        pytest.param([StreamAbort(1, 7, 8)], id="abort-of-unknown-stream"),
        pytest.param([Prepare(1, 7, 1, 2, 0, "g")], id="prepare-alone"),
        pytest.param([Origin(1, "o", 1)], id="origin-alone"),
        pytest.param([Skipped(1)], id="skipped-alone"),
        pytest.param([LogicalMessage(1, True, "p", b"")], id="message-alone"),
        pytest.param([Begin(1, 1, 9, 0), LogicalMessage(1, False, "p", b"")], id="message-inside"),
        pytest.param([StreamStart(1, 7, True), StreamStart(1, 8, True)], id="start-in-segment"),
        pytest.param([Begin(1, 7, 0, 0), StreamStop(1)], id="stop-of-a-begin"),
        pytest.param(
            [BeginPrepare(1, 7, 1, 2, 0, "g"), Commit(1, 1, 2, 0)], id="commit-of-prepare"
        ),
    ],
)
def test_messages_out_of_order_are_refused(messages):
    with pytest.raises(DecodeError):
        assembler().feed(messages)
