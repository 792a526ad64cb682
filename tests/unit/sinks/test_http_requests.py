"""What the sink ``http`` makes of records: bodies, headers, lanes."""

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waltap.format.record import Record
from waltap_sinks.http.requests import lanes, packer

RECORDS = [
    Record("s.a", b'{"id":1}', b'{"op":"c"}'),
    Record("s.a", b'{"id":1}', None),
    Record("s.b", None, b'{"op":"r"}', (("h", b'"x"'),)),
]

some_records = st.lists(
    st.builds(
        Record,
        st.sampled_from(["s.a", "s.b"]),
        st.one_of(st.none(), st.sampled_from([b"1", b"2", b"3"])),
        st.one_of(st.none(), st.integers(0, 10**18).map(lambda number: b"%d" % number)),
    )
)


@given(some_records, st.integers(1, 8))
def test_records_of_a_key_stay_in_order(records: list[Record], count: int) -> None:
    shared = lanes(records, count)
    assert sorted(map(id, records)) == sorted(id(r) for lane in shared for r in lane)
    for place in {(r.topic, r.key) for r in records}:
        wanted = [r for r in records if (r.topic, r.key) == place]
        holding = [lane for lane in shared if any((r.topic, r.key) == place for r in lane)]
        assert len(holding) == 1
        assert [r for r in holding[0] if (r.topic, r.key) == place] == wanted


@given(some_records, st.integers(1, 5), st.integers(1, 200))
def test_bodies_hold_every_record_once(records: list[Record], most: int, size: int) -> None:
    array = packer("array", most=most, most_bytes=size, tombstones=True)
    lines = packer("lines", most=most, most_bytes=size, tombstones=True)
    requests = list(array(records))
    found = [item for request in requests for item in json.loads(request.body)]
    assert [item["topic"] for item in found] == [record.topic for record in records]
    assert sum(len(request.held) for request in requests) == len(records)
    assert all(len(request.held) <= most for request in requests)
    assert all(len(r.held) == 1 or len(r.body) <= size + 2 for r in requests)
    again = [json.loads(text) for r in lines(records) for text in r.body.splitlines()]
    assert again == found


@pytest.mark.parametrize("body", ["record", "array", "lines", "cloudevents"])
def test_tombstones_are_left_out_unless_they_are_wanted(body: str) -> None:
    pack = packer(body, most=10, most_bytes=1000)
    assert sum(len(request.held) for request in pack(RECORDS)) == 2


def test_a_record_is_its_value_with_key_and_headers_beside_it() -> None:
    pack = packer("record", most=1, most_bytes=1, prefix="X-", encode=False, tombstones=True)
    first, tombstone, last = pack(RECORDS)
    assert first.body == b'{"op":"c"}'
    assert first.headers == {
        "Content-Type": "application/json",
        "X-TOPIC": "s.a",
        "X-KEY": '{"id":1}',
    }
    assert tombstone.body == b""
    assert last.headers["X-h"] == '"x"'


def test_headers_survive_as_base64() -> None:
    pack = packer("record", most=1, most_bytes=1, prefix="X-")
    (request,) = pack([Record("täble", "ü\n".encode(), b"{}")])
    assert base64.b64decode(request.headers["X-KEY"]).decode() == "ü\n"
    assert request.headers["X-TOPIC"] == "t%C3%A4ble"


def test_binary_cloud_events_have_the_names_of_http() -> None:
    headers = (("ce_id", b'"7"'), ("content-type", b'"application/json"'), ("ce_type", b"x"))
    (request,) = packer("record", most=1, most_bytes=1)([Record("t", None, b"{}", headers)])
    assert request.headers["ce-id"] == "7"
    assert request.headers["ce-type"] == "x"
    assert request.headers["Content-Type"] == "application/json"


def test_a_batch_of_cloud_events_is_an_array_of_values() -> None:
    pack = packer("cloudevents", most=10, most_bytes=1000)
    (request,) = pack(RECORDS)
    assert json.loads(request.body) == [{"op": "c"}, {"op": "r"}]
    assert request.headers["Content-Type"] == "application/cloudevents-batch+json"
