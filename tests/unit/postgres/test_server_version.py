"""Servers whose catalogue has every column that the queries read."""

import pytest

from waltap_postgres.start.server_checks import version


@pytest.mark.parametrize(
    ("number", "verdict"), [(90624, "error"), (110022, "error"), (120000, "ok"), (180004, "ok")]
)
def test_servers_from_12_on_are_supported(number, verdict):
    found = version(number)
    assert found.verdict == verdict
    assert ("12 or later" in found.remedy) == (verdict == "error")
