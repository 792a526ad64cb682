"""What a test needs that the machine may lack: a skip with a reason, or with ``CI=true`` a failure."""

import os
from typing import NoReturn

import pytest


def missing(what: str) -> NoReturn:
    """End the test that needs ``what``: a failure with ``CI=true``, otherwise a skip."""
    reason = f"{what}; `make setup` installs what it may, or says what to install"
    if os.environ.get("CI", "").lower() not in ("", "0", "false", "no"):
        pytest.fail(f"CI=true, and this service is missing: {reason}", pytrace=False)
    pytest.skip(reason)
