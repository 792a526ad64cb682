"""What publications leave out of a table, as a SELECT of a snapshot has it."""

from waltap.ports.source.published import EVERYTHING, PublishedSubset


def test_a_filter_joins_the_condition_of_a_range():
    narrowing = PublishedSubset("(a > 1) OR (b < 2)")
    assert narrowing.where() == " WHERE ((a > 1) OR (b < 2))"
    assert narrowing.where(" WHERE x OR y") == " WHERE ((a > 1) OR (b < 2)) AND (x OR y\n)"
    assert EVERYTHING.where(" WHERE x") == " WHERE x"
    assert EVERYTHING.where() == ""
