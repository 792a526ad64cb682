"""Patterns and replacements as Java writes them."""

import pytest

from waltap.changes.capture.java_regex import java_pattern, java_replacement

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
def test_a_group_has_as_many_digits_as_there_are_groups(regex, replacement, topic, expected):
    pattern = java_pattern(regex)
    assert pattern.sub(java_replacement(replacement, pattern), topic, count=1) == expected


@pytest.mark.parametrize(
    ("text", "whole", "not_whole"),
    [
        (r"[a\[b]+", "a[b", "a&b"),
        (r"\[[ab]]", "[a]", "a"),
        (r"[a&b]+", "a&b", "a-b"),
        ("[a||b]+", "a|b", "a-b"),
        ("[a~~b]+", "a~b", "a-b"),
        ("[]a]+", "]a", "[a"),
        (r"\Q[[a]]\E", "[[a]]", "a"),
        (r"[\p{Digit}x]+", "1x", "y"),
    ],
)
def test_a_set_has_the_members_that_java_gives_it(text, whole, not_whole):
    assert java_pattern(text).fullmatch(whole)
    assert not java_pattern(text).fullmatch(not_whole)


@pytest.mark.parametrize(
    "text", ["[[]]", "[a[bc]]", "[^a[bc]]", "[a-z&&[^b]]", "[a-z&&b]", r"x[\w[.]]"]
)
def test_sets_of_sets_are_refused_each_time(text):
    for _ in range(2):
        with pytest.raises(ValueError, match="as one set"):
            java_pattern(text)


@pytest.mark.parametrize("text", ["(", "a{9999999999}", "*", "\\"])
def test_what_is_no_pattern_is_a_value_error(text):
    with pytest.raises(ValueError, match="not a regular expression"):
        java_pattern(text)
