"""What a comparison looks like on a terminal."""

import io

from rich.console import Console
from waltap_sinks.comparison.found import Comparison, comparison_table


def test_a_table_is_named_as_it_is_called() -> None:
    found = Comparison(
        table="public.[b] x", source_rows=1, target_rows=1, source_hash="1", target_hash="1"
    )
    said = io.StringIO()
    Console(file=said, width=160).print(comparison_table([found], "Spark"))
    assert "public.[b] x" in said.getvalue()
