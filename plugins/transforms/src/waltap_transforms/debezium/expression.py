"""Expressions over records: CEL, or a Python function.

CEL (https://cel.dev) ends always, reaches nothing but the record, and says most conditions as Groovy does.
The library converts what an expression is given for each record, and a whole event costs more than most
conditions: only the members that the expression names are handed over (`members`).
"""

import importlib
import re
import sys
from collections.abc import Callable
from decimal import Decimal
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from waltap.format.connect_record import ConnectRecord
from waltap.format.record_transform import RecordUnfit
from waltap.format.schema_memory import SchemaMemory
from waltap.mapping.connect_schema import ConnectKind, Schema

__all__ = ["ENTRY_POINTS", "Expression", "cel_expression", "compiled", "members", "python_function"]

ENTRY_POINTS = "waltap.expressions"
"""The group of entry points that names of functions are looked for in."""

VARIABLES = ("key", "value", "keySchema", "valueSchema", "topic", "header")
DECIMAL = "org.apache.kafka.connect.data.Decimal"
VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"

Expression = Callable[[ConnectRecord], object]
Tree = dict[str, Any]
"""Names of members, each with those below it; an empty tree stands for the member as a whole."""
View = Callable[[Any], Any]

_LITERAL = re.compile(r"""'[^']*'|"[^"]*"|//[^\n]*""")
_PATH = r"(?<![\w.]){}\b((?:\s*\.\s*[A-Za-z_]\w*(?!\w)(?!\s*\())*)"
_BOUND = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*(\w+)\s*,")
DEEPEST = 2
"""Levels of members that are told apart: value.after.x."""


def compiled(text: str) -> Any:
    """Return the program of a CEL expression. Raises: ValueError saying what is wrong with it."""
    import cel

    try:
        program = cel.compile(text)
    except ValueError as cause:
        said = str(cause).split("\n", 1)[0].rpartition("ERROR: ")[2]
        raise ValueError(f"not a CEL expression: {said}") from cause
    unknown = set(program.variables()) - set(VARIABLES) - set(_BOUND.findall(text))
    if unknown:
        raise ValueError(
            f"nothing is called {', '.join(sorted(unknown))}; there are {', '.join(VARIABLES)}"
        )
    return program


def members(text: str, variable: str) -> Tree:
    """Return the members of ``variable`` that the CEL expression ``text`` can look at; an empty tree: all.

    It may find more than there are, never less: what is written in another way than ``value.after.id``
    counts as all.
    """
    tree: Tree = {}
    if "\\" in text or "'''" in text or '"""' in text:
        return tree
    for match in re.finditer(_PATH.format(variable), _LITERAL.sub("''", text)):
        path = [part.strip() for part in match[1].split(".")[1:]]
        if not path:
            return {}
        below = tree
        for depth, name in enumerate(path[:DEEPEST], 1):
            known = below.get(name)
            if known == {} and name in below:  # it is handed over as a whole already
                break
            if depth == min(len(path), DEEPEST):
                below[name] = {}
                break
            below = below.setdefault(name, {})
    return tree


def cel_expression(text: str) -> Expression:
    """Return what evaluates the CEL expression ``text``. Raises: ValueError.

    It is given what Debezium's scripts are: key, value, their schemas, topic, and header, a map of name to
    value and schema. Structs are maps with all of their fields; decimals are doubles. The function raises
    RecordUnfit where it cannot be evaluated.
    """
    program = compiled(text)
    used = frozenset(program.variables())
    views = {
        name: SchemaMemory(_view_of(members(text, name)))
        for name in ("key", "value")
        if name in used
    }

    def evaluate(record: ConnectRecord) -> object:
        given: dict[str, Any] = {"topic": record.topic}
        for name, schema, held in (
            ("key", record.key_schema, record.key),
            ("value", record.value_schema, record.value),
        ):
            if name in used:
                given[name] = held if schema is None else views[name].of(schema)(held)
            if f"{name}Schema" in used:
                given[f"{name}Schema"] = _described(schema)
        if "header" in used:
            given["header"] = {
                name: {"value": value, "schema": _described(schema)}
                for name, schema, value in record.headers
            }
        try:
            found: object = program.execute(given)
        except KeyError as cause:
            raise RecordUnfit(f"the expression names {cause}, which the record lacks") from cause
        except Exception as cause:
            raise RecordUnfit(f"the expression fails: {type(cause).__name__}") from cause
        return found

    return evaluate


def python_function(path: str) -> Expression:
    """Return the function ``module:name``, or that of the entry point ``path`` (group `ENTRY_POINTS`).

    The working directory may hold the module. Raises: ValueError where there is none.
    """
    module_name, colon, name = path.partition(":")
    try:
        if colon:
            here = str(Path.cwd())
            if here not in sys.path:
                sys.path.insert(0, here)
            found = getattr(importlib.import_module(module_name), name)
        else:
            (point,) = entry_points(group=ENTRY_POINTS, name=path) or (None,)
            if point is None:
                raise ValueError(
                    f"{path!r} is neither module:name nor an entry point of {ENTRY_POINTS}"
                )
            found = point.load()
    except (ImportError, AttributeError) as cause:
        raise ValueError(f"{path!r} cannot be imported: {cause}") from cause
    if not callable(found):
        raise ValueError(f"{path!r} is not a function")  # noqa: TRY004 - it is a setting that is wrong

    def evaluate(record: ConnectRecord) -> object:
        try:
            result: object = found(record)
        except RecordUnfit:
            raise
        except Exception as cause:
            raise RecordUnfit(f"the function {path} raised {type(cause).__name__}") from cause
        return result

    return evaluate


def _described(schema: Schema | None) -> dict[str, Any] | None:
    if schema is None:
        return None
    return {
        "name": schema.name,
        "type": schema.kind.name,
        "version": schema.version,
        "optional": schema.optional,
        "fields": [field.name for field in schema.fields],
    }


def _view_of(tree: Tree) -> Callable[[Schema], View]:
    return lambda schema: _view(schema, tree) or (lambda value: value)


def _view(schema: Schema, tree: Tree) -> View | None:
    """Return what an expression gets of values of ``schema``, of structs the members in ``tree``; None:
    the value as it is."""
    if schema.name == DECIMAL and schema.kind is ConnectKind.BYTES:
        scale = int(dict(schema.parameters).get("scale", "0"))
        return lambda value: None if value is None else _number(value, scale)
    if schema.name == VARIABLE_DECIMAL:
        return lambda value: None if value is None else _number(value["value"], value["scale"])
    if schema.kind is ConnectKind.ARRAY and schema.items is not None:
        item = _view(schema.items, {})
        if item is None:
            return None
        return lambda value: None if value is None else [item(each) for each in value]
    if schema.kind is not ConnectKind.STRUCT:
        return None
    parts = [
        (field.name, _view(field.schema, tree.get(field.name, {})))
        for field in schema.fields
        if not tree or field.name in tree
    ]

    def struct(value: Any) -> Any:
        if value is None:
            return None
        return {
            name: value.get(name) if view is None else view(value.get(name)) for name, view in parts
        }

    return struct


def _number(unscaled: bytes, scale: int) -> float:
    return float(Decimal(int.from_bytes(unscaled, "big", signed=True)).scaleb(-scale))
