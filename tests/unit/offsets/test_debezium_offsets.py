"""Debezium's offsets: the file as Java writes it, the key, and the position that an offset means."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltap.changes.transactions.position import Position, SnapshotProgress
from waltap.ports.offsets.offset import Offset, PartitionOffset
from waltap.services.debezium_offsets import (
    DebeziumOffsetMissing,
    DebeziumOffsetUnusable,
    OffsetMap,
    RecordKey,
    chosen,
    java_map,
    of_offset,
    parse_java_map,
)

BY_JAVA = bytes.fromhex(
    "aced0005737200116a6176612e7574696c2e486173684d61700507dac1c31660d103000246000a6c6f6164466163746f72"
    "4900097468726573686f6c6478703f4000000000000c77080000001000000001757200025b42acf317f8060854e0020000"
    "78700000001b5b227475726e73222c7b22736572766572223a2273686f70227d5d7571007e0002000000097b226c736e22"
    "3a377d78"
)
"""What Java 17 writes for one entry."""

KEY = b'["turns",{"server":"shop"}]'


def test_the_file_is_what_java_writes():
    assert parse_java_map(BY_JAVA) == {KEY: b'{"lsn":7}'}
    assert java_map({KEY: b'{"lsn":7}'}) == BY_JAVA


@given(st.dictionaries(st.binary(max_size=30), st.binary(max_size=60), max_size=40))
def test_what_is_written_is_read(entries):
    assert parse_java_map(java_map(entries)) == entries


@given(st.integers(0, len(BY_JAVA) - 1), st.binary(max_size=4))
def test_a_file_that_is_torn_or_spoilt_is_an_error_and_nothing_else(at, bytes_):
    for spoilt in (BY_JAVA[:at], BY_JAVA[:at] + bytes_ + BY_JAVA[at + len(bytes_) :]):
        try:
            found = parse_java_map(spoilt)
        except ValueError:
            continue
        assert all(isinstance(part, bytes) for pair in found.items() for part in pair)


def test_values_may_be_null_or_shared():
    head, tail = BY_JAVA[: BY_JAVA.index(b"\x75\x71\x00\x7e")], BY_JAVA[-1:]
    assert parse_java_map(head + b"\x70" + tail) == {}
    assert parse_java_map(head + b"\x71\x00\x7e\x00\x03" + tail) == {KEY: KEY}


def test_keys_are_connects():
    key = RecordKey("turns", "shop")
    assert key.encoded() == KEY
    assert RecordKey.parse(KEY) == key
    assert RecordKey.parse(b'{"schema":{},"payload":["turns",{"server":"shop"}]}') == key
    for other in (b"", b"[]", b'["x",{"filename":"f"}]', b"\xff"):
        assert RecordKey.parse(other) is None


def test_one_offset_must_be_meant():
    second = RecordKey("other", "shop").encoded()
    assert chosen([KEY, b"x"], server="shop", connector=None, location="p") == KEY
    assert chosen([KEY, second], server="shop", connector="other", location="p") == second
    for keys in ([], [KEY, second], [RecordKey("turns", "x").encoded()]):
        with pytest.raises(DebeziumOffsetMissing):
            chosen(keys, server="shop", connector=None, location="p")


def offset_map(**values: object) -> OffsetMap:
    return OffsetMap.parse(json.dumps(values).encode())


def test_positions():
    behind_snapshot = offset_map(lsn=7, snapshot="INITIAL", snapshot_completed=True)
    behind_snapshot.refuse_snapshot()
    assert (behind_snapshot.end_lsn, behind_snapshot.event_lsn) == (7, None)
    committed = offset_map(lsn=9, lsn_proc=9, lsn_commit=9, messageType="COMMIT")
    assert (committed.end_lsn, committed.event_lsn, committed.previous_end_lsn) == (9, None, 9)
    inside = offset_map(lsn=12, lsn_proc=12, lsn_commit=9, messageType="UPDATE")
    assert (inside.end_lsn, inside.event_lsn) == (9, 12)
    same = offset_map(lsn=9, lsn_proc=9, lsn_commit=9, messageType="INSERT")
    assert (same.end_lsn, same.event_lsn) == (9, 9)
    message = offset_map(lsn=9, lsn_proc=9, lsn_commit=9, messageType="MESSAGE")
    assert message.event_lsn is None
    begun = offset_map(lsn=12, lsn_proc=12, lsn_commit=9, messageType="BEGIN")
    assert begun.event_lsn is None


@pytest.mark.parametrize(
    "values",
    [
        {"snapshot": "INITIAL", "snapshot_completed": False},
        {"snapshot": "BLOCKING"},
        {"snapshot": True, "last_snapshot_record": False},
        {"snapshot": True},
    ],
    ids=str,
)
def test_a_snapshot_that_has_not_ended_is_refused(values):
    with pytest.raises(DebeziumOffsetUnusable, match="had begun and not ended"):
        offset_map(lsn=7, **values).refuse_snapshot()


def test_an_incremental_snapshot_goes_on_and_back():
    tables = [
        {
            "incremental_snapshot_collections_id": "public.a",
            "incremental_snapshot_collections_additional_condition": "x > 1",
            "incremental_snapshot_collections_surrogate_key": None,
        },
        {"incremental_snapshot_collections_id": "public.b"},
    ]
    given_ = offset_map(
        lsn=7,
        snapshot="INCREMENTAL",
        incremental_snapshot_collections=json.dumps(tables),
        incremental_snapshot_correlation_id="ad-hoc",
        incremental_snapshot_primary_key="aced",
    )
    given_.refuse_snapshot()
    state = given_.signals
    assert [entry["table"] for entry in state["queue"]] == ["a", "b"]  # type: ignore[index,attr-defined]
    back = json.loads(of_offset(offset(signals=state), now_us=5))
    assert json.loads(back["incremental_snapshot_collections"])[0] == tables[0]
    assert back["incremental_snapshot_correlation_id"] == "ad-hoc"
    with pytest.raises(DebeziumOffsetUnusable, match="incremental snapshot cannot be read"):
        _ = offset_map(lsn=7, incremental_snapshot_collections="[1]").signals


def offset(**more: object) -> Offset:
    partition = PartitionOffset(
        position=Position(9, 20, 3), slot="s", database="d", system_id="1", timeline=1
    )
    made = Offset.of(partition)
    return Offset(partitions=made.partitions, **more)  # type: ignore[arg-type]


def test_an_offset_goes_back_as_behind_a_snapshot():
    assert json.loads(of_offset(offset(), now_us=5)) == {"lsn": 9, "ts_usec": 5}
    with pytest.raises(DebeziumOffsetUnusable):
        of_offset(offset(snapshot=SnapshotProgress(kind="initial", lsn=9)), now_us=5)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"lsn":"7"}', b"{}", b"\xff", b'{"lsn":-1}'])
def test_what_is_no_offset_is_refused(data):
    with pytest.raises(DebeziumOffsetUnusable):
        _ = OffsetMap.parse(data).end_lsn
