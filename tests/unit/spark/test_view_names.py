"""Views of tables are called as the tables, and never as another one."""

import pytest

from waltap_spark.live import view_names


@pytest.mark.parametrize(
    ("tables", "views"),
    [
        ([("public", "a"), ("public", "b")], ["a", "b"]),
        ([("public", "a"), ("sales", "a")], ["public_a", "sales_a"]),
        ([("public", "a"), ("public", "a_changes")], ["a", "public_a_changes"]),
        (
            [("a_b", "c"), ("a", "b_c"), ("x", "c"), ("x", "b_c")],
            ["a_b.c", "a.b_c", "x_c", "x_b_c"],
        ),
    ],
)
def test_a_view_is_called_as_its_table_unless_another_is(
    tables: list[tuple[str, str]], views: list[str]
) -> None:
    assert view_names(tables) == views
