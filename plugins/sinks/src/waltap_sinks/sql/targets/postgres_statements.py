"""Build statements for PostgreSQL whose rows are arrays of text. Sans-IO."""

from collections.abc import Sequence
from typing import Any, Final

from waltap.base.import_rules import pa, pc
from waltap.base.text import escaped
from waltap.changes.arrow.column import string_array
from waltap.changes.decode.row_block import RowBlock
from waltap.changes.decode.tuple_image import Tuple
from waltap_sinks.sql.targets.target import BoundColumn, BoundTable, assignments

# Up to this number of values Python joins them faster than pyarrow.
FEW: Final = 48

# Types without an equality operator, nor have arrays of them one; their texts are compared.
WITHOUT_EQUALITY: Final = frozenset(
    {"json", "xml", "point", "box", "line", "lseg", "path", "polygon", "circle", "txid_snapshot"}
)

# --- texts as the server reads them ---------------------------------------------------------------


def _strings(values: "Sequence[str | None] | pa.StringArray") -> "pa.StringArray":
    return values if isinstance(values, pa.Array) else string_array(values)


def _escaped(values: Any, escapes: Sequence[tuple[str, str]]) -> Any:
    joined = _bytes_of(values)
    for letter, written in escapes:
        if letter.encode() in joined:
            values = pc.replace_substring(values, letter, written)
    return values


def _bytes_of(values: "pa.StringArray") -> bytes:
    """Return all texts, without those outside of a slice."""
    _, offsets, data = values.buffers()
    if data is None:
        return b""
    ends = memoryview(offsets).cast("i")
    return memoryview(data)[ends[values.offset] : ends[values.offset + len(values)]].tobytes()


def copy_lines(columns: "Sequence[Sequence[str | None] | pa.StringArray]") -> memoryview:
    """Return columns of texts in COPY's text format."""
    escapes = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
    arrays = [_escaped(_strings(values), escapes) for values in columns]
    lines = pc.binary_join_element_wise(
        *arrays, "\t", null_handling="replace", null_replacement="\\N"
    )
    # The join puts no newline behind the last line, so add an empty text.
    lines = pa.concat_arrays([lines, pa.array([""], pa.string())])
    joined = pc.binary_join(
        pa.ListArray.from_arrays(pa.array([0, len(lines)], pa.int32()), lines), "\n"
    )
    return memoryview(joined[0].as_buffer())


def array_literal(values: "Sequence[str | None] | pa.StringArray") -> str:
    """Return texts as a literal of ``text[]``."""
    if len(values) <= FEW:
        listed = values if isinstance(values, Sequence) else values.to_pylist()
        parts = [
            "NULL" if value is None else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
            for value in listed
        ]
        return "{" + ",".join(parts) + "}"
    texts = _escaped(_strings(values), (("\\", "\\\\"), ('"', '\\"')))
    quoted = pc.fill_null(pc.binary_join_element_wise('"', texts, '"', ""), "NULL")
    joined = pc.binary_join(
        pa.ListArray.from_arrays(pa.array([0, len(quoted)], pa.int32()), quoted), ","
    )
    return "{" + str(joined[0].as_py()) + "}"


# --- statements -----------------------------------------------------------------------------------


def sql_name(column: BoundColumn) -> str:
    """Return a column's name for a statement with placeholders."""
    return escaped(column.quoted)


def cast_to(column: BoundColumn) -> str:
    """Return the type to which a column's texts are cast."""
    return escaped(column.existing.bare)


def equals(column: BoundColumn) -> str:
    """Return the equality operator of a key's column."""
    operators = column.existing.operators
    return f"OPERATOR({escaped(operators)}.=)" if operators else "="


def insert_statement(table: BoundTable, ending: str, columns: Sequence[BoundColumn]) -> str:
    """Return an INSERT with an array of texts for each column."""
    names = ", ".join(map(sql_name, columns))
    casts = ", ".join(f"c{n}::{cast_to(column)}" for n, column in enumerate(columns))
    return (
        f"INSERT INTO {escaped(table.quoted)} AS t ({names}) OVERRIDING SYSTEM VALUE"
        f" SELECT {casts} FROM {unnested(len(columns))}{ending}"
    )


def unnested(count: int) -> str:
    """Return the SQL of a relation ``s`` of text arrays."""
    arrays = ", ".join(["%s::text[]"] * count)
    names = ", ".join(f"c{n}" for n in range(count))
    return f"unnest({arrays}) AS s({names})"


def update_statement(table: BoundTable, columns: Sequence[BoundColumn]) -> str:
    """Return an UPDATE with an array of texts for each column."""
    keys = {key.quoted for key in table.key}
    settable = [c for c in columns if c.quoted not in keys and c.existing.settable]
    casts = ", ".join(
        f"c{n}::{cast_to(column)} AS {sql_name(column)}" for n, column in enumerate(columns)
    )
    # Without other columns the key is set to itself, so that missing rows are counted.
    sets = assignments(table, settable or table.key, lambda c: f"s.{sql_name(c)}")
    where = " AND ".join(f"t.{sql_name(key)} {equals(key)} s.{sql_name(key)}" for key in table.key)
    return (
        f"UPDATE {escaped(table.quoted)} AS t SET {sets}"
        f" FROM (SELECT {casts} FROM {unnested(len(columns))}) AS s WHERE {where}"
    )


def keys_relation(table: BoundTable, *more: tuple[str, str]) -> tuple[str, str]:
    """Return SQL for keys ``k`` and their join with ``t``."""
    casts = [f"c{n}::{cast_to(key)} AS {sql_name(key)}" for n, key in enumerate(table.key)]
    casts += [f"c{n}::{type_} AS {name}" for n, (name, type_) in enumerate(more, len(casts))]
    source = f"(SELECT {', '.join(casts)} FROM {unnested(len(casts))}) AS k"
    return source, " AND ".join(
        f"t.{sql_name(key)} {equals(key)} k.{sql_name(key)}" for key in table.key
    )


# --- values ---------------------------------------------------------------------------------------


def key_literals(table: BoundTable, keys: Sequence[Any]) -> list[str]:
    """Return an array for each column of the key.

    ``keys`` are results of `TargetShape.key_of`.
    """
    return [
        array_literal(table.shape.values(key.source, values))
        for key, values in zip(table.key, table.shape.keys(keys), strict=True)
    ]


def texts(
    table: BoundTable, columns: Sequence[BoundColumn], rows: Sequence[Tuple]
) -> "list[Sequence[str | None] | pa.StringArray]":
    """Return a sequence of texts for each column.

    The columns of a `RowBlock` stay Arrow arrays.
    """
    if isinstance(rows, RowBlock):
        return [
            rows.columns[column.source.index]
            if column.source.mask is None
            else rows.mapped(column.source.index, column.source.mask)
            for column in columns
        ]
    by_index = list(zip(*rows, strict=True))
    return [table.shape.values(column.source, by_index[column.source.index]) for column in columns]
