"""What `waltap doctor` says of a server: its version, and the WAL that a slot may keep."""

import pytest

from waltap_postgres.start.server_checks import output_plugin, slot_limits, version


@pytest.mark.parametrize(
    ("keep", "limits_wal", "verdicts"),
    [("-1", False, ["warning"]), ("-1", True, []), ("1024", False, ["ok"]), ("1024", True, ["ok"])],
)
def test_wal_that_nothing_bounds_is_reported(keep, limits_wal, verdicts):
    found = list(slot_limits({"max_slot_wal_keep_size": keep}, None, limits_wal=limits_wal))
    assert [each.verdict for each in found] == verdicts
    if verdicts == ["warning"]:
        assert "ALTER SYSTEM SET max_slot_wal_keep_size" in found[0].remedy


def test_each_limit_is_reported_in_units_for_people():
    settings = {"idle_replication_slot_timeout": "864000", "max_slot_wal_keep_size": "-1"}
    idle, keep = slot_limits(settings, None, limits_wal=False)
    assert (idle.verdict, keep.verdict) == ("warning", "warning")
    assert "idle_replication_slot_timeout is 10 days" in idle.found
    (bounded,) = slot_limits({"max_slot_wal_keep_size": "51200"}, None, limits_wal=False)
    assert "max_slot_wal_keep_size is 50.0 GiB" in bounded.found


@pytest.mark.parametrize(("number", "verdict"), [(110022, "error"), (120000, "ok")])
def test_servers_from_12_on_are_supported(number, verdict):
    found = version(number)
    assert found.verdict == verdict
    assert ("12 or later" in found.remedy) == (verdict == "error")


def test_a_plugin_that_the_role_cannot_look_up_is_not_called_fit():
    """Only some roles may read the server's list, and only some servers have one."""
    assert "a new slot shows" in output_plugin({}, "wal2json").found
    assert output_plugin({}, "pgoutput").found == "pgoutput"
    listed = {"output_plugin_libraries": "pgoutput, wal2json"}
    assert output_plugin(listed, "wal2json").found == "wal2json is allowed"
