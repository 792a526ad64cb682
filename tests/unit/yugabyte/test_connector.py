"""YugabyteDB's connector: its own defaults, what it refuses, where connections go, and what the server's errors mean."""

from typing import Any

import pytest

from waltap.config.layers import read_tables
from waltap.config.resolve import resolve, survey
from waltap.errors import ConnectionLost, RetryVerdict
from waltap.plugins.host import Host
from waltap_postgres.connection import conninfo
from waltap_postgres.errors import PublicationGone, SlotInvalidated
from waltap_yugabyte import properties
from waltap_yugabyte.errors import (
    ChangeRefused,
    CommandsOff,
    ReadTimeRefused,
    SlotStillActive,
    SlotsUsedUp,
    YugabyteMeanings,
)
from waltap_yugabyte.properties import YugabyteProperties
from waltap_yugabyte.server import release

GIVEN = {"database.dbname": "d", "database.hostname": "a:1,b:2"}


def test_libpq_draws_a_host_for_each_connection():
    made = YugabyteProperties.model_validate(GIVEN)
    assert "load_balance_hosts=random" in conninfo(made, role="x")
    in_turn = YugabyteProperties.model_validate(GIVEN | {"yb.load.balance.connections": False})
    assert "load_balance_hosts" not in conninfo(in_turn, role="x")


def test_an_older_libpq_gets_the_hosts_in_another_order(monkeypatch):
    """It refuses a connection string with the parameter."""
    monkeypatch.setattr(properties, "balances", lambda: False)
    made = YugabyteProperties.model_validate(GIVEN)
    assert "load_balance_hosts" not in conninfo(made, role="x")
    assert {made.addresses for _ in range(200)} == {("a,b", "1,2"), ("b,a", "2,1")}
    in_turn = YugabyteProperties.model_validate(GIVEN | {"yb.load.balance.connections": False})
    assert {in_turn.addresses for _ in range(200)} == {("a,b", "1,2")}


def tables(**source: Any) -> Any:
    given = {"type": "yugabyte", "database.dbname": "d", "topic.prefix": "t", **source}
    kept = {name: value for name, value in given.items() if value is not None}
    return read_tables({"name": "p", "source": kept, "sink": {"type": "null"}})


PARALLEL = {
    "streaming.mode": "parallel",
    "slot.names": "a,b",
    "publication.names": "p,p",
    "slot.ranges": "0,32768;32768,65536",
    "table.include.list": "public.t",
}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (PARALLEL | {"slot.ranges": "0,100;32768,65536"}, "hash_code 100 is missing"),
        (PARALLEL | {"slot.ranges": "0,32768;32768,65000"}, "Incomplete ranges provided"),
        (PARALLEL | {"slot.ranges": "0,32768"}, "they must have as many"),
        (PARALLEL | {"slot.ranges": "0,40000;32768,65536"}, "in two ranges"),
        (PARALLEL | {"slot.ranges": "0;1"}, "is not FROM,TO"),
        (PARALLEL | {"slot.names": None}, "needs slot.names"),
        (PARALLEL | {"streaming.mode": None}, "only valid with streaming.mode"),
        ({"database.hostname": "a,b"}, "specify multiple hosts"),
        ({"database.hostname": "a:1,b:x"}, "HOST:PORT"),
        ({"decimal.handling.mode": "precise"}, "double, string"),
    ],
)
def test_what_cannot_work_is_refused(changed, words):
    """Scenario 31, of ranges of hash codes; lists of hosts; modes that the connector has not."""
    assert words in "".join(map(str, survey(tables(**changed), Host()).problems))
    assert not survey(tables(**PARALLEL), Host()).problems


def test_its_own_defaults():
    profile = resolve(tables(), Host())
    properties = profile.connector.properties
    assert (properties.port, properties.user) == (5433, "yugabyte")
    assert (profile.engine.max_retries, profile.engine.retry_delay_ms) == (60, 30000)
    assert profile.decoder.spec.name == "yboutput"
    assert profile.capture.decimal_handling_mode == "double"


@pytest.mark.parametrize(
    ("version", "found"),
    [
        ("PostgreSQL 15.12-YB-2025.2.4.0-b0 on x86_64-pc-linux-gnu", "2025.2.4.0"),
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
