"""Columns as Spark's expressions: by any name, and what the change log's own columns say of a row."""

import functools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = [
    "EXACT",
    "column_of",
    "held",
    "long_bytes",
    "namespace_of",
    "order",
    "quoted",
    "sent",
    "the_same",
    "unchanged_as",
    "with_names",
]

ORDER: Final = ("_epoch", "_commit_lsn", "_seq", "_sub")

EXACT: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}
"""How values are written as JSON that is to differ where they do: not in milliseconds."""


def column_of(name: str) -> "Column":
    """Return the column called ``name``, dots and back-ticks and all."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(quoted(name))


def quoted(name: str) -> str:
    """Return ``name`` as an identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def namespace_of(name: str) -> str:
    """Return what stands before the last part of a name of `quoted` parts, whatever is in them."""
    return ".".join(re.findall(r"`(?:[^`]|``)*`", name)[:-1])


def order() -> "Column":
    """Return what rows are put in order by."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.struct(*ORDER)


def the_same(one: "Column", other: "Column") -> "Column":
    """Return whether two key values are equal; null is what stands for values that do not fit."""
    return one.eqNullSafe(other)


def sent(name: str) -> "Column":
    """Tell whether a row brings a value of the column ``name``."""
    from pyspark.sql import functions as F  # noqa: N812

    return (F.col("_op") != "d") & ~held(name)


def held(name: str) -> "Column":
    """Tell whether a row says that its value of the column ``name`` is the earlier one."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.coalesce(F.array_contains("_unchanged", name), F.lit(False))


def with_names(rows: "DataFrame", names: Mapping[str, str]) -> "DataFrame":
    """Return ``rows`` of the change log with other ``names`` (old → new) of columns."""
    return rows.select(
        *(
            unchanged_as(names)
            if name == "_unchanged"
            else column_of(name).alias(names.get(name, name))
            for name in rows.columns
        )
    )


def unchanged_as(names: Mapping[str, str]) -> "Column":
    """Return `_unchanged` with ``names`` (old → new) of columns."""
    from pyspark.sql import functions as F  # noqa: N812

    def present(name: "Column") -> "Column":
        found = name
        for old, new in names.items():
            found = F.when(name == F.lit(old), F.lit(new)).otherwise(found)
        return found

    return F.transform("_unchanged", present).alias("_unchanged")


def long_bytes(types: Mapping[str, str]) -> "Column | None":
    """Return about how many bytes the values of a row have in those columns (name → type in JSON) that
    may have many; None where there is no such column."""
    from pyspark.sql import functions as F  # noqa: N812

    long = [
        column_of(name) if kind in ('"string"', '"binary"') else column_of(name).cast("string")
        for name, kind in types.items()
        if kind in ('"string"', '"binary"') or kind.startswith("{")
    ]
    each = [F.coalesce(F.octet_length(value), F.lit(0)).cast("long") for value in long]
    return functools.reduce(lambda one, other: one + other, each) if each else None
