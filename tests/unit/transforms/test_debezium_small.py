"""Debezium's smaller transforms: what they refuse, and what the comparison with Debezium cannot show."""

from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from tests.harness.change_records import change_records
from waltap.capture.capture import Capture, CaptureProperties
from waltap.format.connect_record import ConnectRecord
from waltap.format.record_transform import RecordTransformContext, RecordUnfit
from waltap.mapping.connect_schema import Field, Kind, Schema
from waltap_transforms.debezium import DEBEZIUM
from waltap_transforms.debezium.wkb import swapped, with_srid, without_srid
from waltap_transforms.debezium.zone import Zone, moved_time, moved_timestamp

SPECS = {spec.name: spec for spec in DEBEZIUM}
TEXT = Schema(kind=Kind.STRING)


def made(name: str, /, **given: str) -> Any:
    properties = SPECS[name].properties
    context = RecordTransformContext(
        label="t", capture=Capture(CaptureProperties.model_validate({"topic.prefix": "server"}))
    )
    config = {key.replace("__", "."): value for key, value in given.items()}
    return SPECS[name].factory(  # type: ignore[call-arg]
        None if properties is None else properties.model_validate(config), context
    )


def message(content: bytes | None, **more: Any) -> ConnectRecord:
    record = next(each for each in change_records(1, 200) if each.topic == "server.message")
    value = {**record.value, "message": {"prefix": "p", "content": content}}
    return msgspec.structs.replace(record, value=value, **more)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("header-to-value", {"headers": "a,b", "fields": "x", "operation": "move"}),
        ("header-to-value", {"headers": "a", "fields": "x y", "operation": "move"}),
        ("header-to-value", {"headers": "a", "fields": "x"}),
        ("partition-routing", {"partition__payload__fields": "op"}),
        ("partition-routing", {"partition__payload__fields": "op", "partition__topic__num": "0"}),
        ("timezone-converter", {}),
        ("timezone-converter", {"converted__timezone": "Nowhere/Town"}),
        ("timezone-converter", {"converted__timezone": "UTC", "include__list": "orders"}),
        (
            "timezone-converter",
            {"converted__timezone": "UTC", "include__list": "t:a", "exclude__list": "t:b"},
        ),
        ("schema-change-filter", {"schema__change__event__exclude__list": "RENAME"}),
        ("schema-change-filter", {}),
        ("swap-geometry-coordinates", {"srids": "WGS84"}),
        ("geometry-format", {"format": "wkt"}),
    ],
)
def test_properties_that_cannot_work_are_refused_at_once(name: str, given: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        made(name, **given)


def test_a_message_becomes_a_create_with_the_members_of_its_content() -> None:
    (event,) = made("decode-message-content")([message(b'{"id": 7, "tags": ["a"], "none": null}')])
    assert event.value_schema.name == "io.debezium.connector.postgresql.MessageValue.Envelope"
    assert event.value["op"] == "c"
    assert event.value["after"] == {"id": 7, "tags": ["a"]}
    assert "message" not in event.value
    assert (event.key_schema, event.key) == (None, None)
    (event,) = made("decode-message-content", fields__null__include="true")(
        [message(b'{"none": null}')]
    )
    assert event.value["after"] == {"none": None}


@pytest.mark.parametrize("content", [b"text", b"[1]", b"{", b"\xff", b"", None])
def test_a_message_that_is_no_json_object_is_refused(content: bytes | None) -> None:
    with pytest.raises(RecordUnfit, match="content"):
        made("decode-message-content")([message(content)])


def test_what_is_no_message_passes() -> None:
    tombstone = ConnectRecord("t", TEXT, "k", None, None)
    records = [*change_records(3, 30), tombstone]
    plain = [each for each in records if each.topic != "server.message"]
    assert made("decode-message-content")(plain) == plain


def test_partitions_by_a_side_that_is_not_there_are_refused() -> None:
    delete = next(
        each for each in change_records(1, 80) if each.value and each.value.get("op") == "d"
    )
    route = {"partition__payload__fields": "after.kind", "partition__topic__num": "3"}
    with pytest.raises(RecordUnfit, match="after is null"):
        made("partition-routing", **route)([delete])


def test_a_schema_that_does_not_tell_its_type_is_refused() -> None:
    create = next(
        each for each in change_records(1, 80) if each.value and each.value.get("op") == "c"
    )
    with pytest.raises(RecordUnfit, match="column.propagate.source.type"):
        made("extract-schema")([create])


def test_schema_changes_are_left_out_by_their_type() -> None:
    def change(*types: str) -> ConnectRecord:
        schema = Schema(kind=Kind.STRUCT, name="io.debezium.connector.x.SchemaChangeValue")
        return ConnectRecord(
            "t", None, None, schema, {"tableChanges": [{"type": t} for t in types]}
        )

    kept = made("schema-change-filter", schema__change__event__exclude__list="alter,DATABASE")(
        [
            change("CREATE"),
            change("ALTER"),
            change(),
            change("DROP", "ALTER"),
            *change_records(1, 5),
        ]
    )
    assert [len(each.value["tableChanges"]) for each in kept[:2]] == [1, 2]
    assert len(kept) >= 7


def test_a_header_goes_into_no_scalar_and_no_value_without_fields() -> None:
    given = {"headers": "a", "operation": "move"}
    row = Schema(kind=Kind.STRUCT, fields=(Field("n", TEXT),))
    record = ConnectRecord("t", None, None, row, {"n": "x"}, (("a", TEXT, "v"),))
    with pytest.raises(RecordUnfit, match="n is string: it can have no field x"):
        made("header-to-value", fields="n.x", **given)([record])
    plain = msgspec.structs.replace(record, value_schema=TEXT, value="x")
    with pytest.raises(RecordUnfit, match="no struct"):
        made("header-to-value", fields="x", **given)([plain])


@pytest.mark.parametrize("end", [0, 4, 8, 20])
def test_a_geometry_that_ends_early_is_refused(end: int) -> None:
    wkb = bytes.fromhex("0101000020e6100000000000000000f03f0000000000000040")
    with pytest.raises(RecordUnfit):
        swapped(wkb[:end])
    assert swapped(swapped(wkb)) == wkb
    assert with_srid(without_srid(wkb), 4326) == wkb


def test_geometries_inside_of_geometries_are_swapped_in_their_own_byte_order() -> None:
    point = bytes.fromhex("0101000000") + b"\0" * 7 + b"\1" + b"\0" * 7 + b"\2"
    big = bytes.fromhex("0000000001") + b"\1" + b"\0" * 7 + b"\2" + b"\0" * 7
    collection = bytes.fromhex("010700000002000000") + point + big
    turned = swapped(collection)
    assert turned[9 + 5 : 9 + 21] == b"\0" * 7 + b"\2" + b"\0" * 7 + b"\1"
    assert turned[9 + 21 + 5 :] == b"\2" + b"\0" * 7 + b"\1" + b"\0" * 7


@pytest.mark.parametrize("text", ["infinity", "", "2026-01-01", "2026-01-01T00:00:00"])
def test_what_is_no_timestamp_is_refused(text: str) -> None:
    with pytest.raises(RecordUnfit):
        moved_timestamp(text, Zone("UTC"))
    with pytest.raises(RecordUnfit):
        moved_time(text, 0)


def test_times_far_away_and_in_gaps() -> None:
    zone = Zone("Europe/Vienna")
    assert moved_timestamp("2026-07-01T00:00:00.100Z", zone) == "2026-07-01T02:00:00.1+02:00"
    assert moved_timestamp("+294276-12-31T23:59:59Z", zone) == "+294277-01-01T00:59:59+01:00"
    assert moved_timestamp("-4712-01-01T00:00:00Z", Zone("-00:30")) == "-4713-12-31T23:30:00-00:30"
    assert moved_time("00:30:00Z", -3600) == "23:30:00-01:00"
