"""Statements of the PostgreSQL target: rows come as an array of texts for each column. Sans-IO."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from waltap.changes.decode.tuple_image import Tuple
from waltap.changes.transactions.row_block import RowBlock
from waltap_sinks.sql.targets.target import BoundColumn, BoundTable

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "alive",
    "array_literal",
    "cast_to",
    "copy_lines",
    "equal_tests",
    "equals",
    "insert_statement",
    "key_literals",
    "keys_relation",
    "on_conflict",
    "percent",
    "sql_name",
    "texts",
    "unnested",
    "update_statement",
    "values_of",
]


# Columns of PostgreSQL's text as its server reads them: lines of COPY, literals of arrays.
# Sans-IO.

FEW: Final = 48
"""So many values are joined by Python; more are quicker in pyarrow."""

Texts = "Sequence[str | None] | pa.StringArray"


def _strings(values: "Sequence[str | None] | pa.StringArray") -> "pa.StringArray":
    import pyarrow as pa

    from waltap.changes.arrow.column import string_array

    return values if isinstance(values, pa.Array) else string_array(values)


def _escaped(values: Any, escapes: Sequence[tuple[str, str]]) -> Any:
    import pyarrow.compute as pc

    data = values.buffers()[2]  # the texts one after the other; of a slice, more than its own
    whole = b"" if data is None else data.to_pybytes()
    for letter, written in escapes:
        if letter.encode() in whole:
            values = pc.replace_substring(values, letter, written)
    return values


def copy_lines(columns: "Sequence[Sequence[str | None] | pa.StringArray]") -> memoryview:
    """Return rows, given as one sequence of texts for each column, in COPY's text format."""
    import pyarrow as pa
    import pyarrow.compute as pc

    escapes = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
    arrays = [_escaped(_strings(values), escapes) for values in columns]
    lines = pc.binary_join_element_wise(
        *arrays, "\t", null_handling="replace", null_replacement="\\N"
    )
    # the last line ends as the others do: an empty text behind it
    lines = pa.concat_arrays([lines, pa.array([""], pa.string())])
    whole = pc.binary_join(
        pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), "\n"
    )
    return memoryview(whole[0].as_buffer())


def array_literal(values: "Sequence[str | None] | pa.StringArray") -> str:
    """Return texts as the literal of a ``text[]``."""
    if len(values) <= FEW:
        listed = values if isinstance(values, Sequence) else values.to_pylist()
        parts = [
            "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
            for value in listed
        ]
        return "{" + ",".join(parts) + "}"
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = _escaped(_strings(values), (("\\", "\\\\"), ('"', '\\"')))
    quoted = pc.fill_null(pc.binary_join_element_wise('"', texts, '"', ""), "NULL")
    whole = pc.binary_join(
        pa.ListArray.from_arrays(pa.array([0, len(quoted)], pa.int32()), quoted), ","
    )
    return "{" + str(whole[0].as_py()) + "}"


WITHOUT_EQUALITY: Final = frozenset(
    {"json", "xml", "point", "box", "line", "lseg", "path", "polygon", "circle", "txid_snapshot"}
)
"""Types whose values are compared by their text, as are those of an extension and of users."""


def percent(text: str) -> str:
    """Return SQL that stands in a statement with placeholders."""
    return text.replace("%", "%%")


def sql_name(column: BoundColumn) -> str:
    """Return the name of a column as it stands in a statement with placeholders."""
    return percent(column.quoted)


def cast_to(column: BoundColumn) -> str:
    """Return the type that texts of a column are cast to."""
    return percent(column.existing.bare)


def equals(column: BoundColumn) -> str:
    """Return the operator that values of a key are found by."""
    operators = column.existing.operators
    return f"OPERATOR({percent(operators)}.=)" if operators else "="


def insert_statement(table: BoundTable, ending: str, columns: Sequence[BoundColumn]) -> str:
    """Return an INSERT of rows that come as an array of texts for each of ``columns``."""
    names = ", ".join(map(sql_name, columns))
    casts = ", ".join(f"c{n}::{cast_to(column)}" for n, column in enumerate(columns))
    return (
        f"INSERT INTO {percent(table.quoted)} AS t ({names}) OVERRIDING SYSTEM VALUE"
        f" SELECT {casts} FROM {unnested(len(columns))}{ending}"
    )


def unnested(count: int) -> str:
    """Return SQL of a relation ``s`` of ``count`` columns of text, given as arrays."""
    arrays = ", ".join(["%s::text[]"] * count)
    names = ", ".join(f"c{n}" for n in range(count))
    return f"unnest({arrays}) AS s({names})"


def on_conflict(table: BoundTable, *, keep: bool) -> str:
    """Return what an INSERT ends with where rows of the same key may be there."""
    names = ", ".join(map(sql_name, table.key))
    keys = {key.quoted for key in table.key}
    sets = [
        f"{sql_name(column)} = EXCLUDED.{sql_name(column)}"
        for column in table.columns
        if column.quoted not in keys and column.existing.settable
    ]
    if table.soft is not None:
        sets.append(f"{percent(table.soft)} = NULL")
    if keep or not sets:
        return f" ON CONFLICT ({names}) DO NOTHING"
    return f" ON CONFLICT ({names}) DO UPDATE SET {', '.join(sets)}"


def alive(table: BoundTable) -> str:
    """Return what an UPDATE sets besides, where a row that was marked deleted is there again."""
    return "" if table.soft is None else f", {percent(table.soft)} = NULL"


def update_statement(table: BoundTable, columns: Sequence[BoundColumn]) -> str:
    """Return an UPDATE of rows that come as an array of texts for each of ``columns``."""
    keys = {key.quoted for key in table.key}
    settable = [c for c in columns if c.quoted not in keys and c.existing.settable]
    casts = ", ".join(
        f"c{n}::{cast_to(column)} AS {sql_name(column)}" for n, column in enumerate(columns)
    )
    # an update that sends the key alone sets it to itself, so that missing rows are counted
    sets = ", ".join(f"{sql_name(c)} = s.{sql_name(c)}" for c in settable or table.key)
    where = " AND ".join(f"t.{sql_name(key)} {equals(key)} s.{sql_name(key)}" for key in table.key)
    return (
        f"UPDATE {percent(table.quoted)} AS t SET {sets}{alive(table)}"
        f" FROM (SELECT {casts} FROM {unnested(len(columns))}) AS s WHERE {where}"
    )


def keys_relation(table: BoundTable, *more: tuple[str, str]) -> tuple[str, str]:
    """Return SQL of a relation ``k`` of keys, and the condition that joins it to ``t``."""
    casts = [f"c{n}::{cast_to(key)} AS {sql_name(key)}" for n, key in enumerate(table.key)]
    casts += [f"c{n}::{type_} AS {name}" for n, (name, type_) in enumerate(more, len(casts))]
    source = f"(SELECT {', '.join(casts)} FROM {unnested(len(casts))}) AS k"
    return source, " AND ".join(
        f"t.{sql_name(key)} {equals(key)} k.{sql_name(key)}" for key in table.key
    )


# --- values ---------------------------------------------------------------------------------------


def key_literals(table: BoundTable, keys: Sequence[Any]) -> list[str]:
    """Return the values of keys, as `TableShape.key_of` gives them: an array for each column."""
    return [
        array_literal(table.shape.values(key.source, values))
        for key, values in zip(table.key, table.shape.keys(keys), strict=True)
    ]


def texts(
    table: BoundTable, columns: Sequence[BoundColumn], rows: Sequence[Tuple]
) -> "list[Sequence[str | None] | pa.StringArray]":
    """Return a sequence of texts for each of ``columns``; those of a `RowBlock` stay Arrow's."""
    if isinstance(rows, RowBlock):
        return [
            rows.columns[column.source.index]
            if column.source.mask is None
            else rows.mapped(column.source.index, column.source.mask)
            for column in columns
        ]
    by_index = list(zip(*rows, strict=True))
    return [table.shape.values(column.source, by_index[column.source.index]) for column in columns]


def values_of(column: BoundColumn, rows: Sequence[Tuple]) -> Sequence[Any]:
    """Return the texts of one column of ``rows``, masked."""
    source = column.source
    values: Sequence[Any] = [row[source.index] for row in rows]
    return values if source.mask is None else [source.mask(value) for value in values]


def equal_tests(columns: Sequence[BoundColumn], row: Tuple) -> tuple[list[str], list[Any]]:
    """Return conditions that ``columns`` are as in ``row``, NULL too, and their parameters."""
    tests, values = [], []
    for column in columns:
        name, cast = sql_name(column), cast_to(column)
        if column.existing.bare in WITHOUT_EQUALITY or "." in column.existing.bare:
            name, cast = f"{name}::text", "text"
        tests.append(f"{name} IS NOT DISTINCT FROM %s::{cast}")
        values.append(values_of(column, [row])[0])
    return tests, values
