"""Waits between tries: they double up to a ceiling, and are counted."""

from random import Random

from waltap.pipeline.backoff import RetryBackoff


def waits(retries: int, ceiling: float, tries: int) -> list[float]:
    seen: list[float] = []

    def wait(seconds: float) -> bool:
        seen.append(seconds)
        return True

    backoff = RetryBackoff(wait, retries=retries, ceiling_s=ceiling, chance=Random(1))
    for _ in range(tries):
        if not backoff.wait():
            break
    return seen


def test_waits_double_to_the_ceiling_and_differ_a_little() -> None:
    seen = waits(-1, 3.0, 8)
    for seconds, nominal in zip(seen, [0.2, 0.4, 0.8, 1.6, 3.0, 3.0, 3.0, 3.0], strict=True):
        assert 0.8 * nominal <= seconds <= 1.2 * nominal
    assert len(set(seen[4:])) > 1


def test_so_many_tries_as_allowed_and_no_more() -> None:
    assert len(waits(3, 1.0, 10)) == 3
    assert waits(0, 1.0, 10) == []


def test_without_end_the_wait_stays_finite() -> None:
    assert len(waits(-1, 5.0, 2000)) == 2000


def test_success_starts_anew() -> None:
    seen: list[float] = []
    backoff = RetryBackoff(
        lambda s: not seen.append(s), retries=2, ceiling_s=10.0, chance=Random(1)
    )
    assert backoff.wait()
    assert backoff.wait()
    assert backoff.spent
    backoff.succeeded()
    assert not backoff.spent
    assert backoff.wait()
    assert seen[2] < 0.25


def test_a_stop_ends_the_wait() -> None:
    assert not RetryBackoff(
        lambda _seconds: False, retries=-1, ceiling_s=1.0, chance=Random(1)
    ).wait()
