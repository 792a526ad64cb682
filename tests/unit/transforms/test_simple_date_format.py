"""Java's SimpleDateFormat reads texts: a limit of digits holds in runs of numbers only, zones have names."""

from datetime import UTC, datetime

import pytest

from waltap_transforms.java.dates import SimpleDateFormat


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("M/d/yyyy", "12/5/2026", (2026, 12, 5)),
        ("d.M.yyyy", "31.12.1999", (1999, 12, 31)),
        ("yyyyMMdd", "20261225", (2026, 12, 25)),
        ("EEE MMM dd HH:mm:ss zzz yyyy", "Wed Jul 01 12:00:00 CEST 2026", (2026, 7, 1, 10)),
        ("yyyy-MM-dd HH z", "2026-07-01 12 pst", (2026, 7, 1, 20)),
        ("yyyy-MM-dd HH z", "2026-07-01 12 GMT-03:30", (2026, 7, 1, 15, 30)),
        ("yyyy-MM-dd HH z", "2026-07-01 12 UTC+1", (2026, 7, 1, 12)),
        ("yyyy-MM-dd HH:mm:ssX", "2026-07-01 12:00:00Z", (2026, 7, 1, 12)),
        ("yyyy-MM-dd HH:mm:ssX", "2026-07-01 12:00:00+02", (2026, 7, 1, 10)),
        ("YYYY-'W'ww-u", "2026-W05-3", (2026, 1, 28)),
        ("yyyy ww", "2026 01", (2025, 12, 28)),
        ("EEE ww YYYY", "Fri 05 2026", (2026, 1, 30)),
    ],
)
def test_a_text_is_read_as_java_reads_it(pattern, text, expected):
    found = SimpleDateFormat(pattern).parse(text)
    assert found == datetime(*expected, tzinfo=UTC).timestamp() * 1000


@pytest.mark.parametrize("zone", ["West Kazakhstan Time", "Western European Standard Time", "Zulu"])
def test_a_name_that_begins_as_another_zone_is_refused(zone):
    with pytest.raises(ValueError, match="does not match"):
        SimpleDateFormat("HH z").parse(f"12 {zone}")
