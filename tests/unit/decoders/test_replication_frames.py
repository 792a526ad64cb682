"""CopyData payloads of the replication protocol, both ways, and on recorded connections."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waltap.errors import DecodeError
from waltap_postgres.replication.frames import (
    FrameError,
    Keepalive,
    StandbyStatus,
    XLogData,
    keepalive,
    parse_server_frame,
    parse_standby_status,
    standby_status,
    xlog_data,
)

from tests.rigs.captures import FOLDER

CONNECTIONS = ["wire_pg15_v3", "pg16/wire_pg16_v4"]


def recorded(name: str, key: str) -> list[bytes]:
    with (FOLDER / f"{name}.jsonl").open(encoding="utf-8") as lines:
        entries = [json.loads(line) for line in lines]
    return [bytes.fromhex(entry[key]) for entry in entries if isinstance(entry.get(key), str)]


@pytest.mark.parametrize("name", CONNECTIONS)
def test_recorded_frames_of_servers_are_read_and_written_back(name: str) -> None:
    frames = recorded(name, "recv")
    assert {data[:1] for data in frames} == {b"w", b"k"}
    for data in frames:
        frame = parse_server_frame(data)
        if isinstance(frame, Keepalive):
            again = keepalive(end=frame.end, sent=frame.sent, reply=frame.reply)
        else:
            assert frame.start in (0, frame.end)
            again = xlog_data(frame.payload, start=frame.start, end=frame.end, sent=frame.sent)
        assert again == data
        assert 1_700_000_000_000_000 < frame.sent < 2_000_000_000_000_000


def test_recorded_statuses_of_clients_are_read_and_written_back() -> None:
    statuses = [data for data in recorded("wire_pg15_v3", "send") if data[:1] == b"r"]
    assert statuses
    for data in statuses:
        said = parse_standby_status(data)
        again = standby_status(
            written=said.written,
            flushed=said.flushed,
            applied=said.applied,
            sent=said.sent,
            reply=said.reply,
        )
        assert again == data


def test_times_are_microseconds_since_1970() -> None:
    frame = bytes.fromhex("6b00000000065b3a20000303ae7e026b2601")
    assert parse_server_frame(frame) == Keepalive(0x65B3A20, 1795157703412518, True)


HEADER = b"w" + bytes(24)
KEEPALIVE = b"k" + bytes(17)
STATUS = b"r" + bytes(33)


@pytest.mark.parametrize(
    ("data", "offset", "expected"),
    [
        pytest.param(b"", 0, "frame type", id="F1"),
        pytest.param(b"x" + bytes(30), 0, "frame type w or k", id="F2"),
        pytest.param(HEADER[:-1], 24, "a header of 25 bytes", id="F3"),
        pytest.param(HEADER, 25, "a payload", id="F4"),
        pytest.param(KEEPALIVE[:-1], 17, "18 bytes", id="F5-short"),
        pytest.param(KEEPALIVE + b"\0", 18, "18 bytes", id="F5-long"),
        pytest.param(KEEPALIVE[:-1] + b"\2", 17, "reply flag 0 or 1", id="F6"),
    ],
)
def test_fault_of_a_server_s_frame_is_named(data: bytes, offset: int, expected: str) -> None:
    with pytest.raises(FrameError) as caught:
        parse_server_frame(data)
    assert caught.value.offset == offset
    assert expected in caught.value.expected
    assert isinstance(caught.value, DecodeError)


@pytest.mark.parametrize(
    ("data", "offset"),
    [
        pytest.param(b"", 0, id="empty"),
        pytest.param(b"h" + bytes(33), 0, id="type"),
        pytest.param(STATUS[:-1], 33, id="short"),
        pytest.param(STATUS + b"\0", 34, id="long"),
        pytest.param(STATUS[:-1] + b"\2", 33, id="flag"),
    ],
)
def test_fault_of_a_client_s_frame_is_named(data: bytes, offset: int) -> None:
    with pytest.raises(FrameError) as caught:
        parse_standby_status(data)
    assert caught.value.offset == offset


LSN = st.integers(0, 2**64 - 1)
TIME = st.integers(0, 2**61)


@given(LSN, LSN, TIME, st.binary(min_size=1))
def test_plugin_payloads_travel_unchanged(start: int, end: int, sent: int, payload: bytes) -> None:
    data = xlog_data(payload, start=start, end=end, sent=sent)
    assert parse_server_frame(data) == XLogData(start, end, sent, payload)


@given(LSN, LSN, LSN, TIME, st.booleans())
def test_statuses_travel_unchanged(
    written: int, flushed: int, applied: int, sent: int, reply: bool
) -> None:
    data = standby_status(written=written, flushed=flushed, applied=applied, sent=sent, reply=reply)
    assert parse_standby_status(data) == StandbyStatus(written, flushed, applied, sent, reply)
