"""What the check says of what a server may have."""

import pytest

from waltap_wal_limit.check import verdict


@pytest.mark.parametrize(
    ("setting", "expected"), [("-1", "warning"), (None, "warning"), ("51200", "ok")]
)
def test_a_limit_is_wanted(setting, expected):
    found = verdict(setting)
    assert found.verdict == expected
    assert found.verdict == "ok" or found.remedy.startswith("ALTER SYSTEM")
