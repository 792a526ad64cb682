"""Replacements as Java writes them."""

import pytest

from waltap.capture.java_regex import java_pattern, java_replacement

TEN = "(a)(b)(c)(d)(e)(f)(g)(h)(i)(j)"


@pytest.mark.parametrize(
    ("regex", "replacement", "topic", "expected"),
    [
        (TEN, "$10-$1", "abcdefghij", "j-a"),
        (TEN, "$11", "abcdefghij", "a1"),  # there is no eleventh group
        ("(a)(.*)", "$20", "ab", "b0"),
        ("(a)", "$1²", "a", "a²"),
        ("(?<n>a)", "${n}\\$1", "a", "a$1"),
    ],
)
def test_a_group_has_as_many_digits_as_there_are_groups(
    regex: str, replacement: str, topic: str, expected: str
) -> None:
    pattern = java_pattern(regex)
    assert pattern.sub(java_replacement(replacement, pattern), topic, count=1) == expected
