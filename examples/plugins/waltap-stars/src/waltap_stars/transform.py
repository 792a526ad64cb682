"""A transform that writes stars in place of the text of some columns."""

from collections.abc import Callable

from waltap.config import CommaList, Properties, declare
from waltap.changes.decode import Column, Relation
from waltap.ports.transforms import Batch, Rewrite, rewrite_columns


class StarsProperties(Properties):
    """Which columns."""

    columns: CommaList = declare(
        "columns", summary="Columns (schema.table.column) whose text becomes stars."
    )


def new_transform(properties: StarsProperties) -> Callable[[Batch], Batch]:
    """Return the transform: one per pipeline, called per batch."""

    def stars(relation: Relation, column: Column) -> Rewrite | None:
        """Say what becomes of a column's values; asked once per column, not per row."""
        if f"{relation.name}.{column.name}" not in properties.columns:
            return None
        return lambda values: ["***"] * len(values)  # NULLs are not among them, and stay

    return rewrite_columns(stars)
