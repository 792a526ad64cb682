"""Numbers of columns that changes get while the engine lags: values in wrong columns do not stay unsaid."""

import logging

import pytest
from tests.hunt.column_histories import Mix, judged

MIXES = {
    "DDL apart": (Mix(apart=1), 1, 40),
    "DDL apart, live": (Mix(apart=1, catch_up=1), 0, 20),
    "savepoints": (Mix(savepoint=0.15), 2, 80),
    "ids out of order": (Mix(early=0.1), 6, 100),
}
"""Mix, and the most histories of 400 with wrong values that stay unsaid, and with doubts."""


@pytest.mark.parametrize("mix", MIXES)
def test_wrong_values_are_rare_and_doubts_are_few(mix, caplog):
    caplog.set_level(logging.ERROR, "waltap_postgres")
    drawn, silent, doubted = MIXES[mix]
    counts = judged(range(400), drawn)
    assert counts["silent"] <= silent
    assert counts["doubted"] <= doubted
