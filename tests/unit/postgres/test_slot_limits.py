"""What `waltap doctor` says of the WAL that a slot may keep."""

import pytest

from waltap_postgres.catalog.server_checks import slot_limits


@pytest.mark.parametrize(
    ("keep", "budgeted", "verdicts"),
    [("-1", False, ["warning"]), ("-1", True, []), ("1024", False, ["ok"]), ("1024", True, ["ok"])],
)
def test_wal_that_nothing_bounds_is_told_of(keep: str, budgeted: bool, verdicts: list[str]) -> None:
    found = slot_limits({"max_slot_wal_keep_size": keep}, None, budgeted=budgeted)
    assert [each.verdict for each in found] == verdicts
    if verdicts == ["warning"]:
        assert "ALTER SYSTEM SET max_slot_wal_keep_size" in found[0].remedy
