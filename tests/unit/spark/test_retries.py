"""When a table that stands still is tried again."""

import pytest

from waltap_spark import retries
from waltap_spark.retries import MOST, RETRY_S, TRY_S, TableRetries


def test_a_try_that_takes_long_is_made_as_much_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(retries.time, "monotonic", lambda: now[0])
    known = TableRetries()
    assert known.due("t")
    for spent, pause in (
        (0.5, RETRY_S),
        (10 * TRY_S, 10 * RETRY_S),
        (99 * TRY_S, MOST * RETRY_S),
        (1.0, RETRY_S),
    ):
        with known.timed("t"):
            now[0] += spent
        known.failed("t")
        now[0] += pause - 1
        assert not known.due("t")
        assert known.due("another")
        now[0] += 1
        assert known.due("t")
    known.failed("t")
    known.forget("t")
    assert known.due("t")
