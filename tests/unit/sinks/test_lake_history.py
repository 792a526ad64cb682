"""What the history of a lake's table says about rows that were committed to it."""

from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from waltap_lake.delta import was_restored
from waltap_lake.iceberg import descends

KNOWN = 5


def commit(version: int, operation: str = "WRITE", **more: Any) -> dict[str, Any]:
    """Return what Delta's log says of a commit; version N came N seconds after the first."""
    return {"version": version, "timestamp": 1000 * version, "operation": operation, **more}


def restore(at: int, /, **parameters: object) -> dict[str, Any]:
    return commit(at, "RESTORE", operationParameters=parameters)


OWN = {"waltap.pipeline": "p"}
DELTA: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "nothing came": ([commit(5)], False),
    "the log was cleaned": ([], False),
    "others wrote": ([commit(5), commit(6, "OPTIMIZE"), commit(7, "DELETE")], False),
    "to an older version": ([commit(5), restore(6, version="4")], True),
    "to the known version": ([commit(5), commit(6), restore(7, version=5)], False),
    "to a version that came later": ([commit(5), commit(6), restore(7, version="6")], False),
    "undone": ([commit(5), restore(6, version="2"), restore(7, version="5")], False),
    "to where it was restored": (
        [commit(5), restore(6, version="2"), restore(7, version="5"), restore(8, version="6")],
        True,
    ),
    "written to since": ([commit(5), restore(6, version="4"), commit(7, **OWN)], True),
    "own commit lost": ([commit(5), commit(6, **OWN), restore(7, version="5")], True),
    "another pipeline's commit lost": (
        [commit(5), commit(6, **{"waltap.pipeline": "q"}), restore(7, version="5")],
        False,
    ),
    "to a time before": ([commit(5), restore(6, datetime="4999")], True),
    "to a time after": ([commit(5), commit(6), restore(7, datetime="5001")], False),
    "to a local time, by Spark": (
        [commit(5), restore(6, version=None, timestamp="2026-11-24 22:00:00.0")],
        True,
    ),
    "replaced, by Spark": ([commit(5), commit(6, "CREATE OR REPLACE TABLE AS SELECT")], True),
}


@pytest.mark.parametrize("case", DELTA)
def test_a_delta_log_shows_whether_a_restore_took_a_commit_back(case):
    commits, expected = DELTA[case]
    assert was_restored(commits, KNOWN, "p") == expected


def metadata(version: int, *snapshots: tuple[int, int | None]) -> TableMetadata:
    """Return a table whose snapshots have these ids, which are their sequence numbers, and parents; the
    last one is current."""
    about: dict[str, Any] = {
        "format-version": version,
        "table-uuid": "0b5f1a2c-3d4e-4f60-8a7b-000000000001",
        "location": "file:///t",
        "last-updated-ms": 1,
        "last-column-id": 0,
        "schemas": [{"type": "struct", "schema-id": 0, "fields": []}],
        "schema": {"type": "struct", "schema-id": 0, "fields": []},
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "partition-spec": [],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
        "snapshots": [
            {
                "snapshot-id": number,
                "timestamp-ms": number,
                "manifest-list": "",
                "summary": {"operation": "append"},
            }
            | ({"sequence-number": number, "schema-id": 0} if version > 1 else {})
            | ({} if parent is None else {"parent-snapshot-id": parent})
            for number, parent in snapshots
        ],
    }
    if version > 1:
        about["last-sequence-number"] = 9
    if snapshots:
        about["current-snapshot-id"] = snapshots[-1][0]
    return TableMetadataUtil.parse_obj(about)


ICEBERG: dict[str, tuple[TableMetadata, bool]] = {
    "no snapshot": (metadata(2), False),
    "current": (metadata(2, (4, None), (5, 4)), True),
    "others wrote": (metadata(2, (5, None), (6, 5), (7, 6)), True),
    "rolled back": (metadata(2, (5, 4), (4, None)), False),
    "rolled back and written to": (metadata(2, (4, None), (5, 4), (6, 4)), False),
    "rolled back, written to and expired": (metadata(2, (4, 3), (6, 4)), False),
    "expired": (metadata(2, (7, 6)), True),
    "expired, by pyiceberg": (metadata(2, (7, None)), True),
    "expired, and still the parent": (metadata(2, (6, 5)), True),
    "expired in between, and tagged": (metadata(2, (5, 4), (8, 7)), True),
    "replaced": (metadata(2, (5, None), (6, None)), False),
    "format 1, expired": (metadata(1, (7, 6)), True),
    "format 1, rolled back": (metadata(1, (5, 4), (4, None)), False),
}


@pytest.mark.parametrize("case", ICEBERG)
def test_a_chain_of_iceberg_snapshots_shows_whether_it_has_one(case):
    found, expected = ICEBERG[case]
    assert descends(found, KNOWN, KNOWN) == expected
