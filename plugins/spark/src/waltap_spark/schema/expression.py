"""Build Spark expressions for columns and the log's own columns."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame


# Columns that order rows of the change log.
ORDER: Final = ("_epoch", "_commit_lsn", "_seq", "_sub")

# Start of the names of temporary columns. No column of a source has so long a name: PostgreSQL's
# have at most 63 bytes.
TEMP: Final = "__waltap".ljust(64, "_")

# The column that flags keys without a row.
GONE: Final = f"{TEMP}gone"

# Options for JSON that differs wherever values differ. Spark's default timestamps end at
# milliseconds.
EXACT: Final = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
    "ignoreNullFields": "false",
}

# Most keys that a condition lists: Delta Lake writes the condition into its log.
LISTED: Final = 200
# Most characters of such a condition, for the same reason: keys may be long texts.
LISTED_LENGTH: Final = 64 << 10

# Types whose literals are equal exactly where values are, and the suffixes of numbers.
_NUMBERS: Final = {'"byte"': "Y", '"short"': "S", '"integer"': "", '"long"': "L"}


def column_of(name: str) -> "Column":
    """Return the column ``name``, also with dots and back-ticks."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.col(quoted(name))


@functools.cache  # there are a few dozen names
def temp(name: str) -> str:
    """Return the name of a temporary column."""
    return f"{TEMP}{name}"


@functools.lru_cache(maxsize=10_000)  # a commit quotes the same names again and again
def quoted(name: str) -> str:
    """Return ``name`` as an identifier of Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def namespace_of(name: str) -> str:
    """Return a name of `quoted` parts without its last part."""
    return ".".join(re.findall(r"`(?:[^`]|``)*`", name)[:-1])


def within_catalogue(name: str) -> str:
    """Return a name of `quoted` parts without the catalogue."""
    return ".".join(re.findall(r"`(?:[^`]|``)*`", name)[1:])


def order() -> "Column":
    """Return the struct that orders rows of the change log."""
    from pyspark.sql import functions as F  # noqa: N812

    return F.struct(*ORDER)


def sent(name: str) -> "Column":
    """Return whether a row has a new value for column ``name``."""
    from pyspark.sql import functions as F  # noqa: N812

    unchanged = F.coalesce(F.array_contains("_unchanged", name), F.lit(False))
    return (F.col("_op") != "d") & ~unchanged


def with_names(rows: "DataFrame", names: Mapping[str, str]) -> "DataFrame":
    """Return change log ``rows`` with columns renamed by ``names``."""
    if not names:
        return rows
    # its values are names of columns, which change too
    values = {"_unchanged": unchanged_as(names)}
    pairs = ((values.get(name, quoted(name)), names.get(name, name)) for name in rows.columns)
    return rows.selectExpr(*(f"{value} AS {quoted(name)}" for value, name in pairs))


def unchanged_as(names: Mapping[str, str]) -> str:
    """Return SQL of `_unchanged` with columns renamed by ``names``."""
    cases = (f"WHEN {literal_of(old)} THEN {literal_of(new)}" for old, new in names.items())
    return f"transform(_unchanged, name -> CASE name {' '.join(cases)} ELSE name END)"


def long_bytes(types: Mapping[str, str]) -> "Column | None":
    """Return the approximate bytes of a row's long values.

    ``types`` maps names to types in JSON. Text, binary and nested columns may be long. None means
    that there is no such column.
    """
    from pyspark.sql import functions as F  # noqa: N812

    long = [
        column_of(name) if kind in ('"string"', '"binary"') else column_of(name).cast("string")
        for name, kind in types.items()
        if kind in ('"string"', '"binary"') or kind.startswith("{")
    ]
    each = [F.coalesce(F.octet_length(value), F.lit(0)).cast("long") for value in long]
    return functools.reduce(lambda one, other: one + other, each) if each else None


def one_of(
    keys: Iterable[tuple[object, ...]], names: Sequence[str], types: Mapping[str, str]
) -> str | None:
    """Return the condition that the columns ``names`` have one of ``keys``.

    None means that literals cannot say it, or that the keys are too many. Formats skip files by
    such a condition, as they cannot by a join.
    """
    if any(types[name] not in {*_NUMBERS, '"string"'} for name in names):
        return None  # a list has no hash
    distinct = dict.fromkeys(keys)
    if not 0 < len(distinct) <= LISTED or any(None in key for key in distinct):
        return None
    columns = dict[str, tuple[str, ...]]()
    for name, values in zip(names, zip(*distinct, strict=True), strict=True):
        suffix = _NUMBERS.get(types[name])
        columns[name] = tuple(
            literal_of(value) if suffix is None else f"{value}{suffix}" for value in values
        )
    parts = tuple(
        f"{quoted(name)} IN ({', '.join(dict.fromkeys(texts))})" for name, texts in columns.items()
    )
    if len(parts) > 1:
        literals = ", ".join(f"({', '.join(each)})" for each in zip(*columns.values(), strict=True))
        parts += (f"({', '.join(map(quoted, names))}) IN ({literals})",)
    condition = " AND ".join(parts)
    return condition if len(condition) <= LISTED_LENGTH else None


def literal_of(value: str) -> str:
    """Return the literal of a text."""
    # Spark replaces ${…} in SQL, also within literals
    escaped = value.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"'{escaped}'"


def literal(text: str, kind: str) -> str:
    """Return SQL of the text's value in the type ``kind``.

    The text of an array is a JSON array of its elements' texts.
    """
    value = literal_of(text)
    if kind.startswith("array<"):
        return f"transform(from_json({value}, 'array<string>'), x -> {_typed('x', kind[6:-1])})"
    return _typed(value, kind)


def _typed(value: str, kind: str) -> str:
    return f"unhex({value})" if kind == "binary" else f"CAST({value} AS {kind})"
