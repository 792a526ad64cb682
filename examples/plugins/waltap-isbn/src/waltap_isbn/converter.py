"""A converter of columns: book numbers like 978-3-16-148410-0 become structs of their parts."""

from collections.abc import Sequence

from waltap.config import CommaList, Properties, declare
from waltap.changes.decode import Column, Relation
from waltap.changes.mapping import ColumnConverter, ColumnConversion, Field, ConnectKind, Schema

SCHEMA = Schema(
    kind=ConnectKind.STRUCT,
    optional=True,
    name="waltap_isbn.BookNumber",
    fields=(
        Field("group", Schema(kind=ConnectKind.STRING)),
        Field("publisher", Schema(kind=ConnectKind.STRING)),
        Field("title", Schema(kind=ConnectKind.STRING)),
        Field("check", Schema(kind=ConnectKind.INT32)),
    ),
)


class IsbnProperties(Properties):
    """Which columns."""

    columns: CommaList = declare(
        "columns", summary="Columns (schema.table.column) that hold book numbers."
    )


def new_converter(properties: IsbnProperties) -> ColumnConverter:
    """Return the converter: one per pipeline."""

    def converter(relation: Relation, column: Column) -> ColumnConversion | None:
        """Say what a column becomes; asked once per column, not per row."""
        if f"{relation.name}.{column.name}" not in properties.columns:
            return None
        return ColumnConversion(schema=SCHEMA, values=book_numbers)

    return converter


def book_numbers(texts: Sequence[str | None]) -> list[object]:
    """Return the Connect values of a column's texts. Raises: ValueError for what is no book number."""
    return [None if text is None else book_number(text) for text in texts]


def book_number(text: str) -> dict[str, object]:
    """Return the parts of a book number. Raises: ValueError."""
    *_, group, publisher, title, check = text.split("-")
    return {"group": group, "publisher": publisher, "title": title, "check": int(check)}
