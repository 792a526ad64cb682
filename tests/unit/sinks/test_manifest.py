"""Manifests: one order, names that sort as they do, and nothing lost in writing."""

import datetime as dt
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltap_sinks.changelog.errors import ChangeLogDamaged
from waltap_sinks.changelog.manifest import (
    NOTHING,
    VERSION,
    ColumnEntry,
    LogPosition,
    Manifest,
    Segment,
    SnapshotPart,
    TableEntry,
    bucket_of,
    log_position_of_name,
    manifest_name,
    next_bucket,
    parse_manifest,
    written_before,
    written_in,
)


def entry(name: str = "t", snapshot_id: int | None = None, complete: bool = False) -> TableEntry:
    return TableEntry(
        schema="public",
        table=name,
        oid=1,
        identity="d",
        key=("id",),
        fingerprint="f",
        columns=(ColumnEntry(name="id", type="integer", arrow="int32", nullable=False),),
        segments=(Segment(path="segments/x", rows=1, bytes=2),),
        rows=1,
        operations={"c": 1},
        snapshot_id=snapshot_id,
        complete=complete,
    )


def manifest(*tables: TableEntry, snapshot: SnapshotPart | None = None) -> Manifest:
    return Manifest(
        version=VERSION,
        log_position=LogPosition(1, 5, 0),
        previous=NOTHING,
        bucket="20261120T091",
        rows=1,
        tables=tables,
        snapshot=snapshot,
    )


def test_a_manifest_is_one_line_and_reads_back_equal():
    made = manifest(entry(), snapshot=SnapshotPart(snapshot_id=1, lsn=7, complete=True))
    data = made.encode()
    assert data.count(b"\n") == 1
    read = parse_manifest(data, "where it was")
    assert read.path == "where it was"
    assert read.encode() == data
    assert read.tables == made.tables


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"version": 1}', b"\xff", b'{"bucket": "\xff"}']
)
def test_damage_is_named(data):
    with pytest.raises(ChangeLogDamaged, match=r"WT-5102 some/path is not a manifest"):
        parse_manifest(data, "some/path")


def test_what_was_changed_since_it_was_written_is_named():
    data = manifest(entry()).encode()
    changed = data.replace(b'"end_lsn":5', b'"end_lsn":7')
    assert changed != data
    for text in (changed, changed.decode().rstrip("\n")):
        with pytest.raises(ChangeLogDamaged, match=r"WT-5102 p is not as it was written"):
            parse_manifest(text, "p")


def test_manifests_without_a_checksum_are_read():
    """Those of earlier versions, and those that somebody wrote anew."""
    made = manifest(entry())
    whole = json.loads(made.encode())
    assert len(whole.pop("crc32")) == 8
    for data in (json.dumps(whole), json.dumps(whole, separators=(",", ":")) + "\n"):
        assert parse_manifest(data, "p").tables == made.tables


def test_another_version_is_refused():
    data = manifest(entry()).encode().replace(b'"version":1', b'"version":3')
    with pytest.raises(ChangeLogDamaged, match="has version 3"):
        parse_manifest(data, "p")


STEPS = st.lists(st.tuples(st.integers(0, 3), st.booleans()), min_size=1, max_size=30)


@given(STEPS)
def test_names_of_an_epoch_sort_in_the_order_of_the_log(steps):
    """A step moves the LSN on, or stays at it with the next ordinal, as the sink does."""
    log_positions = [LogPosition(1, 0, 0)]
    names = [manifest_name(NOTHING, log_positions[0])]
    for distance, _again in steps:
        last = log_positions[-1]
        log_position = (
            LogPosition(1, last.end_lsn + distance, 0)
            if distance
            else LogPosition(1, last.end_lsn, last.ordinal + 1)
        )
        names.append(manifest_name(last, log_position))
        log_positions.append(log_position)
    assert names == sorted(names)
    assert [log_position_of_name(1, name) for name in names] == log_positions
    assert log_positions == sorted(log_positions)


def test_a_clock_that_was_ahead_holds_no_folder_back():
    days = [dt.datetime(2026 + years, 3, 1, tzinfo=dt.UTC) for years in (0, 60, 0, 1, 90, 1)]
    names = [""]
    for day in days:
        names.append(next_bucket(names[-1], day))
    names = names[1:]
    assert names == sorted(set(names)), "in the log's order"
    assert list(map(written_in, names)) == list(map(bucket_of, days))
    assert written_before(names, bucket_of(days[0])) == []
    assert written_before(names, bucket_of(days[3])) == names[:3], "with the first of the future"
    assert written_before(names, "9") == names
