"""Columns of PostgreSQL's text as its server reads them: lines of COPY, literals of arrays. Sans-IO."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["array_literal", "copy_lines"]

FEW: Final = 48
"""So many values are joined by Python; more are quicker in pyarrow."""

Texts = "Sequence[str | None] | pa.StringArray"


def _strings(values: "Sequence[str | None] | pa.StringArray") -> "pa.StringArray":
    import pyarrow as pa

    from waltap.arrow.array import string_array

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
