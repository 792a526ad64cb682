"""What YugabyteDB says of itself, and what its errors mean."""

import pytest

from waltap.errors import ConnectionLost, RetryVerdict
from waltap_postgres.errors import PublicationGone, SlotInvalidated
from waltap_yugabyte.errors import (
    ChangeRefused,
    CommandsOff,
    ReadTimeRefused,
    SlotStillActive,
    SlotsUsedUp,
    YugabyteMeanings,
)
from waltap_yugabyte.server import release


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("PostgreSQL 15.12-YB-2025.2.4.0-b0 on x86_64-pc-linux-gnu", "2025.2.4.0"),
        ("PostgreSQL 11.2-YB-2024.2.5.1-b0 on x86_64-pc-linux-gnu", "2024.2.5.1"),
        ("PostgreSQL 15.8 (Debian 15.8-0+deb12u1) on x86_64-pc-linux-gnu", None),
    ],
)
def test_scenario_35_a_server_is_known_by_its_version(version, found):
    assert release(version) == found


FACTS = {"slot": "s", "publication": "p"}


@pytest.mark.parametrize(
    ("sqlstate", "words", "meaning"),
    [
        (
            "XX000",
            "replica identity CHANGE (for table: 16384) is not supported for …",
            ChangeRefused,
        ),
        ("22023", "CreateReplicationSlot is unavailable", CommandsOff),
        ("XX000", "VWAL cannot be created: max capacity reached", SlotsUsedUp),
        ("XX000", "replication slot s has expired", SlotInvalidated),
        ("55006", 'replication slot "s" is active', SlotStillActive),
        ("42501", 'permission denied to set parameter "yb_read_time"', ReadTimeRefused),
        ("57P01", "terminating connection due to administrator command", ConnectionLost),
        ("40001", "Restart read required", ConnectionLost),
        ("XX000", "schema version mismatch for table", ConnectionLost),
        ("42704", 'publication "p" does not exist', PublicationGone),
    ],
)
def test_errors_of_a_stream(sqlstate, words, meaning):
    found = YugabyteMeanings().of_stream(sqlstate, words, **FACTS)
    assert type(found) is meaning
    passes = issubclass(meaning, ConnectionLost)
    assert (found.retry is RetryVerdict.RECONNECT) == passes
