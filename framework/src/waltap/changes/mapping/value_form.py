"""Complete a type's value form to a column's `ColumnMapping`.

A type family defines the form of its values (`ValueForm`). Optionality, default, NULL and the
placeholders follow the same rules for every type, and are written here once. Plugins that add
types build their mappings through `column_mapping`, too.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from waltap.changes.decode.relation import Column
from waltap.changes.mapping.connect_schema import Schema
from waltap.changes.mapping.json_schema import value_json
from waltap.changes.mapping.type_mapping import (
    ArrowMapping,
    ColumnMapping,
    JsonColumn,
    JsonExpression,
    TypeOptions,
)

# Turn a column's default expression into a schema default.
#
# ``pg_get_expr`` prints the expression. A literal is ``'text'::type`` or bare (``7``, ``true``).
# A function call, or ``CURRENT_TIMESTAMP`` and its like, gives a placeholder of the type. Other
# expressions give no default, because Debezium does not evaluate them. Source: the behaviour of
# Debezium 3.6's default values.

_CALL = re.compile(r"[(]?[A-Za-z0-9_.]+\((?:.*)\)", re.DOTALL)
_LITERAL = re.compile(r"'((?:[^']|'')*)'")
_CLOCKS = frozenset(
    {"current_timestamp", "current_time", "current_date", "localtime", "localtimestamp"}
)


def default_text(expression: str | None, generated: str) -> str | None:
    """Return the default as PostgreSQL text, or None without one.

    A call gives ``generated``.
    """
    if expression is None:
        return None
    expression = expression.strip()
    if _CALL.match(expression) or expression.lower() in _CLOCKS:
        return generated
    if "'" not in expression:
        return None if expression.startswith("NULL::") or expression == "NULL" else expression
    # The first quoted literal counts, also inside an expression, as in Debezium.
    literal = _LITERAL.search(expression)
    return None if literal is None else literal[1].replace("''", "'")


def default_value(
    expression: str | None, generated: str, convert: Callable[[str], object]
) -> object:
    """Return the default as a Connect value.

    None means that there is none, or that it cannot be evaluated.
    """
    text = default_text(expression, generated)
    if text is None:
        return None
    try:
        return convert(text)
    except (ValueError, ArithmeticError):
        return None


class OutOfRange:
    """Handle a value that its Connect type cannot hold.

    Examples are numeric NaN, or a year too far. There is one object per column.
    ``event.converting.failure.handling.mode`` has the rules: fail raises, warn and skip leave the
    field null, and warn also calls `TypeOptions.on_misfit`.
    """

    __slots__ = ("_column", "_fail", "_report", "null_json")

    def __init__(self, column: str, options: TypeOptions) -> None:
        self._column = column
        self._fail = options.event_converting_failure_handling_mode == "fail"
        quiet = options.event_converting_failure_handling_mode == "skip"
        self._report = None if quiet else options.on_misfit
        self.null_json = "null"

    def connect(self, reason: str) -> object:
        """Return None for a misfit; raise ValueError under fail."""
        if self._fail:
            raise ValueError(f"column {self._column!r}: {reason}")
        if self._report is not None:
            self._report(self._column, reason)
        return None

    def json(self, reason: str) -> str:
        """Return the null field's JSON; raise as `connect` does."""
        self.connect(reason)
        return self.null_json


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueForm:
    """Define the form of one type's values.

    The other fields are as in `ColumnMapping`.
    """

    # The Connect schema without optionality and default.
    schema: Schema
    to_json: Callable[[str], str] | None
    to_connect: Callable[[str], object]
    # Connect value for NULL in a required field without default.
    zero: object
    # The column default as a Connect value, None without one.
    default: object = None
    # Connect value of the placeholder; None: the type has none, the field is null.
    unavailable: object = None
    arrow: ArrowMapping | None = None
    json_expression: JsonExpression | None = None
    json_column: JsonColumn | None = None
    integers: bool = False
    # The schema is optional even where the column is NOT NULL; a missing value is still written
    # as `zero`.
    always_optional: bool = False
    streamed_as_null: bool = False
    opaque: bool = False


def column_mapping(
    column: Column, options: TypeOptions, form: ValueForm, misfit: OutOfRange | None = None
) -> ColumnMapping:
    """Complete ``form`` to the mapping of ``column``.

    A column of unknown nullability counts as nullable. A NULL in a field whose schema has a
    default is written as that default, unless ``replace.null.with.default`` is off; Connect
    values keep it None. A required field gets default or zero either way.
    """
    optional = form.always_optional or column.nullable is not False
    schema = msgspec.structs.replace(
        form.schema,
        optional=optional,
        default=form.default,
        doc=form.schema.doc if form.schema.doc is not None else column.comment,
    )
    fallback = form.zero if form.default is None else form.default
    required = column.nullable is False
    if required:
        null_json = value_json(schema, fallback)
    elif options.replace_null_with_default:
        null_json = value_json(schema, form.default)
    else:
        null_json = "null"
    if misfit is not None:
        # `misfit` writes the same null as this field has.
        misfit.null_json = "null" if required else null_json
    if form.unavailable is not None:
        unavailable_json = value_json(schema, form.unavailable)
    else:
        unavailable_json = "null" if required else null_json
    return ColumnMapping(
        schema=schema,
        to_json=form.to_json,
        to_connect=form.to_connect,
        null_json=null_json,
        unavailable_json=unavailable_json,
        arrow=form.arrow,
        unavailable=form.unavailable,
        fallback=fallback if required else None,
        json_expression=form.json_expression,
        json_column=form.json_column,
        integers=form.integers,
        streamed_as_null=form.streamed_as_null,
        opaque=form.opaque,
    )


def placeholder_text(options: TypeOptions) -> str:
    """Return ``unavailable.value.placeholder`` as text."""
    # Java replaces undecodable bytes in the same way.
    return options.unavailable_value_placeholder.decode("utf-8", "replace")
