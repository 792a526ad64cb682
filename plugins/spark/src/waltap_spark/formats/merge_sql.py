"""SQL texts of formats with MERGE.

This module does not import Spark.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from waltap_spark.schema.expression import EXACT, literal_of, quoted

# Spark's setting for INSERT OVERWRITE: replace all rows, or only partitions that get rows.
OVERWRITE: Final = "spark.sql.sources.partitionOverwriteMode"


def retyped(names: Sequence[str], types: Mapping[str, str]) -> str:
    """Return columns ``names`` for SELECT, with casts to ``types``.

    A value that does not fit becomes null.
    """
    return ", ".join(
        f"try_cast({quoted(name)} AS {types[name]}) AS {quoted(name)}"
        if name in types
        else quoted(name)
        for name in names
    )


def inserted(names: Sequence[str]) -> str:
    """Return a MERGE's INSERT of columns ``names`` from s."""
    listed = [quoted(name) for name in names]
    values = ", ".join(f"s.{name}" for name in listed)
    return f"INSERT ({', '.join(listed)}) VALUES ({values})"


def equal(name: str, kind: str) -> str:
    """Return the condition that a column is equal in t and s."""
    if kind in ('"float"', '"double"'):  # 0 and -0 differ
        return f"CAST(t.{name} AS string) <=> CAST(s.{name} AS string)"
    if '"map"' in kind:  # which Spark does not compare
        exact = ", ".join(f"{literal(text, 'string')}" for each in EXACT.items() for text in each)
        return f"to_json(t.{name}, map({exact})) <=> to_json(s.{name}, map({exact}))"
    return f"t.{name} <=> s.{name}"


def literal(text: str, kind: str) -> str:
    """Return SQL of the text's value in the type ``kind``.

    Binary is hexadecimal.
    """
    value = literal_of(text)
    return f"unhex({value})" if kind == "binary" else f"CAST({value} AS {kind})"
