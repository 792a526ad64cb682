"""Render the records of a `RowBlock` column by column.

The functions that `waltap.encoders.json.codec` generates write the same bytes.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from waltap.base.import_rules import pa, pc
from waltap.changes.decode.row_block import RowBlock, texts_of
from waltap.changes.mapping.json_schema import quote
from waltap.encoders.format.record_block import RecordBlock, TextRows
from waltap.encoders.json.codec import ColumnCodec, RowCodec

# Texts and columns of texts, which are joined row by row.
Pieces = Sequence["pa.StringArray | str"]

# Pairs of a number of rows and the text ``a`` of their source blocks.
Heads = Sequence[tuple[int, Pieces]]


def record_block(
    codec: RowCodec,
    block: RowBlock,
    heads: Heads,
    b: Pieces,
    x: Pieces,
    c: str,
    n: "pa.StringArray | str" = "",
) -> RecordBlock:
    """Return the records of ``block``.

    `waltap.encoders.json.format` defines the texts; ``heads`` has the text ``a`` of all rows, in order.
    ``a``, ``b`` and ``x`` consist of pieces; ``n`` is a text or one for each row.

    Raises: one of `MISFITS` for a value that does not fit; no event was counted then.
    """
    columns = _ColumnTexts(block)
    values = _object(columns, codec.columns.values(), "")
    keys = _object(columns, codec.key_columns.values(), codec.key_tail) if codec.key else None
    before, after = codec.key_texts
    start = codec.prefix.decode() + '{"before":null,"after":'
    chunks: list[tuple[TextRows | None, TextRows]] = []
    at = 0
    for count, a in heads:
        source = [',"source":{', *a, n, *b, codec.table, *x, n, c]
        key = None if keys is None else _rows([before, *keys, after], at, count)
        chunks.append((key, _rows([start, *values, *source], at, count)))
        at += count
    return RecordBlock(codec.plan.topic, chunks, codec.headers)


class _ColumnTexts:
    """Convert single columns, once for value and key."""

    def __init__(self, block: RowBlock) -> None:
        self._block = block
        # By index and converter: key and value may convert one column differently.
        self._made: dict[tuple[int, int], Any] = {}

    def json(self, column: ColumnCodec) -> "list[pa.StringArray | str]":
        """Return the pieces that give the column's JSON when joined."""
        if column.constant is not None:
            return [column.constant]
        if column.column is None:
            return [self._by_value(column)]
        known = (column.index, id(column.column))
        if known not in self._made:
            self._made[known] = column.column.convert(self._block.columns[column.index])
        array = self._made[known]
        # None: the whole-column converter cannot write one of the values.
        if array is None:
            return [self._by_value(column)]
        if not array.null_count:
            return ['"', array, '"'] if column.column.quoted else [array]
        # Only values get quotes; the JSON of NULL has its own.
        if column.column.quoted:
            array = pc.binary_join_element_wise('"', array, '"', "")
        return [array.fill_null(column.other(None))]

    def _by_value(self, column: ColumnCodec) -> "pa.StringArray":
        text, values = column.text, texts_of(self._block.columns[column.index])
        null = column.other(None)
        if text is None:
            written = [null if value is None else value for value in values]
        else:
            written = [null if value is None else text(value) for value in values]
        return pa.array(written, pa.string())


def _object(
    columns: _ColumnTexts, codecs: Iterable[ColumnCodec], tail: str
) -> "list[pa.StringArray | str]":
    """Return the pieces of a JSON object.

    ``tail`` becomes its last member.
    """
    pieces: list[pa.StringArray | str] = []
    opening = "{"
    for codec in codecs:
        pieces += [f"{opening}{quote(codec.field)}:", *columns.json(codec)]
        opening = ","
    if tail:
        return [*pieces, f"{opening}{tail}}}"]
    return [*pieces, "}" if pieces else "{}"]


def _rows(pieces: "Sequence[pa.StringArray | str]", start: int, count: int) -> TextRows:
    return TextRows(
        [p if isinstance(p, str) or count == len(p) else p.slice(start, count) for p in pieces],
        count,
    )
