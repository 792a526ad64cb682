"""Which column of Spark's is which of the source's, for a comparison."""

from waltap_spark.output import TableState
from waltap_spark.verify import SparkTables


def test_columns_of_tables_that_had_the_name_before_are_none_of_the_source_s() -> None:
    """A table made anew with another type of ``v``; and one that a column was dropped of before."""
    ids = {"v@2": 2, "id": 10_001, "v": 10_002, "old": 3}
    state = TableState(schema="public", table="t", ids=ids, incarnation=1)
    assert SparkTables._kept("public.t", state).columns == {1: "id", 2: "v"}
    first = TableState(schema="public", table="t", ids={"id": 1, "v": 2})
    assert SparkTables._kept("public.t", first).columns == {1: "id", 2: "v"}
