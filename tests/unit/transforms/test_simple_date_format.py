"""Java's SimpleDateFormat: numbers before a separator may have more digits than the pattern has letters."""

from datetime import UTC, datetime

import pytest

from waltap_transforms.java.dates import SimpleDateFormat


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("M/d/yyyy", "12/5/2026", (2026, 12, 5)),
        ("M/d/yyyy", "1/25/2026", (2026, 1, 25)),
        ("d.M.yyyy", "31.12.1999", (1999, 12, 31)),
        ("yyyyMMdd", "20261225", (2026, 12, 25)),
    ],
)
def test_a_limit_of_digits_holds_in_runs_of_numbers_only(
    pattern: str, text: str, expected: tuple[int, int, int]
) -> None:
    found = SimpleDateFormat(pattern).parse(text)
    assert found == datetime(*expected, tzinfo=UTC).timestamp() * 1000
