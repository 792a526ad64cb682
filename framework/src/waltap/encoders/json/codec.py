"""Generate the JSON codec of one relation version.

Constant text is literal in the generated f-strings. Each column adds one expression, chosen when
the codec is made, so that no row needs a lookup.

Every column's expression is ``to_json(v) if v.__class__ is str else other(v)``. PostgreSQL text, the
common case, goes straight to its JSON; NULL, UNCHANGED and ABSENT take a call.
"""

import abc
import base64
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgspec

from waltap.base.generated import define
from waltap.changes.capture.column_transform import ColumnTransform
from waltap.changes.decode.tuple_image import ABSENT, UNCHANGED, Tuple
from waltap.changes.events.event import Header, Record
from waltap.changes.events.plan import CellShape, EventPlan
from waltap.changes.mapping.connect_schema import Schema
from waltap.changes.mapping.json_schema import quote
from waltap.changes.mapping.type_mapping import ColumnMapping, JsonColumn, JsonExpression
from waltap.encoders.json.columns import AS_IT_IS

# Errors that a mapping may raise for text that is not of its type.
MISFITS = (
    ValueError, TypeError, KeyError, IndexError, ArithmeticError, msgspec.MsgspecError,
)  # fmt: skip

_NULLS = (None, ABSENT)
_SURROGATE = re.compile("[\ud800-\udfff]")
_NO_WORD = re.compile(r"\W", re.ASCII)
Convert = Callable[[Any], str]
Shared = frozenset[int]

# Renders one record that has ``after``. It gets the row, the JSON of ``before``, operation and LSN, the
# JSON list of unsent fields, and the `PartTemplate`. The event is counted last: a row that does not
# fit raises one of `MISFITS` before.
WrittenRenderer = Callable[[Tuple, str, str, str, str, Any], Record]

# Passes the records of one operation to ``append``, its first argument. The others have an entry for
# each row: the rows, the old ones, which only `RowCodec.updates` reads, and the texts ``n``, ``c``,
# ``a``, ``b`` and ``x`` that `waltap.encoders.json.format` defines. ``n`` is the LSN in decimal, or ""
# where ``a`` and ``x`` contain it already. A row that does not fit raises one of `MISFITS`; the records
# before it are appended.
RowsRenderer = Callable[..., None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnCodec:
    """Convert the values of one column to JSON."""

    index: int
    field: str
    # Converts str; None means that the text is JSON already.
    text: Convert | None
    # Converts all other values: NULL and missing values.
    other: Convert
    # JSON that replaces every value, such as a mask.
    constant: str | None = None
    # ``text`` as Python source, which saves a call per value.
    inline: JsonExpression | None = None
    # ``text`` for a whole column at once.
    column: JsonColumn | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class CompiledTable(abc.ABC):
    """Hold the compiled functions of one relation version."""

    plan: EventPlan
    # Makes the twin whose conversions name the column of a value that does not fit; its own twin is it.
    careful: Callable[[], Any]
    # The types were read again and had not changed, so later misfits cause no query.
    renewed: bool = False

    @abc.abstractmethod
    def same_key(self, old: Tuple, new: Tuple) -> bool:
        """Return whether the keys of two rows are written alike."""


@dataclass(slots=True, kw_only=True, eq=False)
class RowCodec(CompiledTable):
    """Hold a relation version's functions for JSON."""

    # Codecs of single columns, by index.
    columns: Mapping[int, ColumnCodec]
    key_columns: Mapping[int, ColumnCodec]
    row_schema: Schema
    key_schema: Schema
    # Text before the payload of a value; b"" without schemas.
    prefix: bytes
    # Text before and after a key's JSON; both "" without schemas.
    key_texts: tuple[str, str]
    # Writes a key's JSON as a header value.
    key_header: Callable[[str], bytes]
    # A JSON member that keys have besides their columns.
    key_tail: str
    # Headers of every record.
    headers: tuple[Header, ...]
    # Makes the twin for snapshot rows; None means this codec.
    snapshot: "Callable[[], RowCodec] | None"
    # Renderers that `old` has made; most tables need none.
    old_renderers: dict[str, RowsRenderer] | None = None

    # The part of the source block that names the table.
    table: str = field(init=False)
    # Columns whose values rows have.
    shown: tuple[int, ...] = field(init=False)
    # Key columns whose NULL is written as a default, to which it is not equal.
    _defaulted: tuple[int, ...] = field(init=False)
    # Returns a key's JSON without schema; None for tables without key.
    key: Callable[[Tuple], str] | None = field(init=False)
    row: Callable[[Tuple], str] = field(init=False)
    creates: RowsRenderer = field(init=False)
    written: WrittenRenderer = field(init=False)

    def __post_init__(self) -> None:
        relation = self.plan.relation
        self.table = f',"schema":{quote(relation.schema)},"table":{quote(relation.table)},"txId":'
        self.shown = tuple(n for n, column in self.columns.items() if column.constant is None)
        self._defaulted = tuple(
            column.index
            for column in self.plan.key_columns
            if (mapping := column.mapping)
            and mapping.schema.optional
            and mapping.schema.default is not None
        )
        made = _defined("codec", self)
        self.key = made["key"] if self.key_columns or self.key_tail else None
        self.row, self.creates, self.written = made["row"], made["creates"], made["written"]

    def reading(self) -> "RowCodec":
        """Return the codec of snapshot rows."""
        return self if self.snapshot is None else self.snapshot()

    def old(self, name: str) -> RowsRenderer:
        """Return the renderer of ``updates`` with an old row, or of ``deletes``.

        The row of a delete is the old one and has the key. The first use compiles the renderer.
        """
        if self.old_renderers is None:
            self.old_renderers = {}
        if name not in self.old_renderers:
            self.old_renderers[name] = _defined(name, self)[name]
        return self.old_renderers[name]

    def same_key(self, old: Tuple, new: Tuple) -> bool:
        return self.key is None or (
            self.key(old) == self.key(new)
            and not (
                self._defaulted
                and any((old[i] in _NULLS) != (new[i] in _NULLS) for i in self._defaulted)
            )
        )


# --- columns --------------------------------------------------------------------------------------


def json_text(value: object) -> str:
    """Return the JSON of a Connect string or byte string."""
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    text = quote(cast(str, value))
    if text.isascii():
        return text
    # Half a surrogate pair has no UTF-8, so it is escaped.
    return _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def column_codec(
    index: int, field: str, mapping: ColumnMapping, transform: ColumnTransform | None = None
) -> ColumnCodec:
    """Return the codec of a column after its ``transform``."""
    if transform is None or transform.value is None:
        return ColumnCodec(
            index=index,
            field=field,
            text=mapping.to_json,
            other=_other(mapping.null_json, mapping.unavailable_json),
            inline=mapping.json_expression,
            column=AS_IT_IS if mapping.to_json is None else mapping.json_column,
        )
    change = transform.value
    # A constant transform ignores its input, so one call gives the JSON of all values.
    if transform.constant:
        mask = json_text(change(None))
        return ColumnCodec(
            index=index, field=field, text=None, other=lambda _value: mask, constant=mask
        )

    def written(value: object) -> str:
        changed = change(value)
        return mapping.null_json if changed is None else json_text(changed)

    to_connect = mapping.to_connect
    null = written(None if mapping.schema.optional else mapping.fallback)
    text: Convert = lambda value: written(to_connect(value))  # noqa: E731 - it is handed on
    other = _other(null, written(mapping.unavailable))
    return ColumnCodec(index=index, field=field, text=text, other=other)


def _other(null: str, unavailable: str) -> Convert:
    """Return the writer of values that are not text.

    Those are NULL and missing values.
    """

    def write(value: object) -> str:
        return null if value is None or value is ABSENT else unavailable

    return write


def guarded(column: ColumnCodec, absent: str, misfit: Callable[[Exception], None]) -> ColumnCodec:
    """Return ``column`` with failing conversions reported.

    ``misfit`` gets the exception and may raise; otherwise ``absent`` is written.
    """

    def guard(convert: Convert) -> Convert:
        def write(value: object) -> str:
            try:
                return convert(value)
            except MISFITS as cause:
                misfit(cause)
                return absent

        return write

    text = None if column.text is None else guard(column.text)
    return replace(column, text=text, other=guard(column.other), inline=None, column=None)


def always_null(column: ColumnCodec) -> ColumnCodec:
    """Return ``column`` written as NULL for every value."""
    return replace(column, text=None, constant=column.other(None), inline=None, column=None)


def celled(column: ColumnCodec, cell: CellShape) -> ColumnCodec:
    """Return ``column`` with its values in the shape of ``cell``."""
    # Plain cells: the value has no object around it.
    if cell.members is None:
        return column
    value, is_set = map(quote, cell.members)
    head, tail = f"{{{value}:", f",{is_set}:true}}"
    constant, text, plain = column.constant, column.text, column.other

    def of_text(given: str) -> str:
        if constant is not None:
            return f"{head}{constant}{tail}"
        return f"{head}{given if text is None else text(given)}{tail}"

    def other(given: object) -> str:
        return "null" if given is UNCHANGED else f"{head}{plain(given)}{tail}"

    return ColumnCodec(index=column.index, field=column.field, text=of_text, other=other)


# --- generated functions --------------------------------------------------------------------------


def _literal(text: str) -> str:
    """Return ``text`` escaped for a triple-quoted f-string."""
    text = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return text.replace("{", "{{").replace("}", "}}")


class _CodecSource:
    """Write the source of a codec's functions."""

    def __init__(self, codec: RowCodec) -> None:
        # Variables have the number and the name of their column, which makes tracebacks readable.
        self._words = [
            f"{index}_{_NO_WORD.sub('_', column.name)[:40]}"
            for index, column in enumerate(codec.plan.relation.columns)
        ]
        # Globals of the generated code.
        self.names: dict[str, object] = {}
        values = self._values = tuple(codec.columns.values())
        keys = self._keys = tuple(codec.key_columns.values())
        self._key_tail = codec.key_tail
        # What precedes a record's value.
        self._wrapped = "_prefix + " if codec.prefix else ""
        self._shared = _shared(values, keys)
        # In records the key uses the variables of columns that the value has too.
        key = self._object(keys, "k", codec.key_tail, self._shared)
        self._record_key = (
            self._key_bytes(key, codec.key_texts) if keys or codec.key_tail else "None"
        )
        self._row = self._object(values, "v", "", self._shared)

    def _value(self, index: int) -> str:
        """Return the variable of a column's value."""
        return f"_v{self._words[index]}"

    def _json(self, index: int) -> str:
        """Return the variable of JSON that value and key share."""
        return f"_json{self._words[index]}"

    def _inlined(self, inline: JsonExpression | None) -> JsonExpression | None:
        """Return ``inline`` if its names can be used here.

        The names become globals of the generated code.
        """
        if inline is None:
            return None
        # A leading underscore is for generated names; two mappings may use one name differently.
        for name, value in inline.names.items():
            if name.startswith("_") or self.names.get(name, value) is not value:
                return None
        self.names.update(inline.names)
        return inline

    def _old_value(self, index: int) -> str:
        """Return the variable of an old row's value."""
        return f"_old{self._words[index]}"

    def _expression(self, column: ColumnCodec, part: str, value: str = "") -> str:
        """Return the Python expression of a column's JSON.

        ``part`` is v for values and k for keys; ``value`` is the variable, empty for the new row's.
        """
        value = value or self._value(column.index)
        call = f"{'key' if part == 'k' else 'value'}{self._words[column.index]}"
        self.names[f"_other_{call}"] = column.other
        plain = value
        inline = self._inlined(column.inline)
        if inline is not None:
            plain = f"({inline.source(value)})"
        elif column.text is not None:
            self.names[f"_text_{call}"] = column.text
            plain = f"_text_{call}({value})"
        return f"{plain} if {value}.__class__ is str else _other_{call}({value})"

    def _object(
        self,
        columns: Sequence[ColumnCodec],
        part: str,
        tail: str = "",
        shared: Shared = frozenset(),
    ) -> str:
        """Return the f-string text of a JSON object.

        ``tail`` becomes its last member. Variables have the JSON of the columns in ``shared``.
        """
        members = []
        for column in columns:
            name = _literal(quote(column.field))
            if column.constant is not None:
                members.append(f"{name}:{_literal(column.constant)}")
            elif column.index in shared:
                members.append(f"{name}:{{{self._json(column.index)}}}")
            else:
                members.append(f"{name}:{{{self._expression(column, part)}}}")
        if tail:
            members.append(_literal(tail))
        return "{{" + ",".join(members) + "}}"

    def _old_object(self, columns: Sequence[ColumnCodec], shared: Shared) -> str:
        """Return the f-string text of an old row.

        A value that equals the new one has the JSON of the new one, if that is in ``shared``.
        """
        members = []
        for column in columns:
            name, old = _literal(quote(column.field)), self._old_value(column.index)
            if column.constant is not None:
                members.append(f"{name}:{_literal(column.constant)}")
                continue
            made = self._expression(column, "v", old)
            if column.index in shared:
                new = self._value(column.index)
                made = f"{self._json(column.index)} if {old} == {new} else {made}"
            members.append(f"{name}:{{{made}}}")
        return "{{" + ",".join(members) + "}}"

    @staticmethod
    def _key_bytes(key: str, texts: tuple[str, str]) -> str:
        """Return the expression of the bytes of ``key`` between ``texts``.

        Texts that name the table are variables, so that tables of one shape share their code.
        """
        before, after = (
            f"{{{name}}}" if text else ""
            for name, text in zip(("_before", "_after"), texts, strict=True)
        )
        return f"f'''{before}{key}{after}'''.encode()"

    def _bindings(self, columns: Sequence[ColumnCodec], shared: Shared) -> str:
        """Return the statement that binds the JSON of the columns in ``shared``."""
        made = [
            f"{self._json(column.index)} = {self._expression(column, 'v')}"
            for column in columns
            if column.index in shared
        ]
        return "; ".join(made) or "pass"

    def _unpack(self, columns: Iterable[ColumnCodec], *, old: bool = False) -> str:
        """Return the statement that binds the values of ``columns``.

        ``old``: of the old row.
        """
        # A constant column needs no value.
        used = {column.index for column in columns if column.constant is None}
        if not used:
            return "pass"
        width = len(self._words)
        variable = self._old_value if old else self._value
        names = [variable(index) if index in used else "_" for index in range(width)]
        return f"{', '.join(names)}{',' if width == 1 else ''} = {'_old' if old else '_values'}"

    def new(self) -> str:
        """Return the source of ``row``, ``key``, ``written`` and ``creates``."""
        values, keys = self._values, self._keys
        key = "''"
        if keys or self._key_tail:
            key = f"f'''{self._object(keys, 'k', self._key_tail)}'''"
        return f"""
def row(_values):
    {self._unpack(values)}
    return f'''{self._object(values, "v")}'''

def key(_values):
    {self._unpack(keys)}
    return {key}

def written(_values, _old, _op, _lsn, _unsent, _texts):
    {self._unpack([*values, *keys])}
    {self._bindings(values, self._shared)}
    return _Record(
        _topic,
        {self._record_key},
        {self._wrapped}f'''{{{{"before":{{_old}},"after":{self._row},"source":{{{{{{_texts.a}}{{_lsn}}{{_texts.b}}\\
{{_table}}{{_texts.x}}{{_lsn}}{{_texts.c(_op, _lsn, _name, _unsent)}}'''.encode(),
        _headers,
    )

{self._records("creates", f'"before":null,"after":{self._row}', self._shared)}
"""

    def old(self, name: str) -> str:
        """Return the source of ``updates`` or ``deletes``."""
        values = self._values
        if name == "deletes":
            return self._records(name, f'"before":{self._row},"after":null', self._shared)
        # Most values of an old row equal the new ones, so these are converted once.
        shared = self._shared | {v.index for v in values if v.text and v.constant is None}
        before, after = self._old_object(values, shared), self._object(values, "v", "", shared)
        images = f'"before":{before},"after":{after}'
        return self._records(name, images, shared, self._unpack(values, old=True))

    def _records(self, name: str, images: str, shared: Shared, unpack_old: str = "pass") -> str:
        return f"""
def {name}(_append, _rows, _olds, _lsns, _ends, _heads, _middles, _ids):
    for _values, _old, _lsn, _end, _head, _middle, _id in zip(
        _rows, _olds, _lsns, _ends, _heads, _middles, _ids
    ):
        {self._unpack([*self._values, *self._keys])}
        {unpack_old}
        {self._bindings(self._values, shared)}
        _append(_Record(
            _topic,
            {self._record_key},
            {self._wrapped}f'''{{{{{images},\\
"source":{{{{{{_head}}{{_lsn}}{{_middle}}{{_table}}{{_id}}{{_lsn}}{{_end}}'''.encode(),
            _headers,
        ))
"""


def _shared(values: Sequence[ColumnCodec], keys: Sequence[ColumnCodec]) -> Shared:
    """Return the key columns whose JSON the value has too.

    Only columns that need a call are worth sharing. Value and key may write NULL differently.
    """
    written = {column.index: column for column in values}
    return frozenset(
        key.index
        for key in keys
        if key.text is not None
        and key.index in written
        and written[key.index].text is key.text
        and written[key.index].constant is None
        and all(written[key.index].other(each) == key.other(each) for each in (None, UNCHANGED))
    )


def _defined(name: str, codec: RowCodec) -> dict[str, Any]:
    """Compile functions of one relation version; return them by name.

    ``name`` is codec, updates or deletes.
    """
    plan, source = codec.plan, _CodecSource(codec)
    code = source.new() if name == "codec" else source.old(name)
    space: dict[str, Any] = {**source.names, "_Record": Record, "_topic": plan.topic}
    space |= {"_headers": codec.headers, "_prefix": codec.prefix, "_table": codec.table}
    space |= {"_name": plan.name}
    space |= dict(zip(("_before", "_after"), codec.key_texts, strict=True))
    # The text is made of generated names, mappings' expressions, and JSON inside literals.
    return define(code, f"JSON {name} of {len(plan.relation.columns)} columns", space)
