"""Filter and ContentBasedRouter: drop or route records by an expression."""

import re
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any, ClassVar, Literal, Self

import msgspec
from pydantic import field_validator, model_validator

from waltap.base.property import Properties, declare
from waltap.changes.capture.java_regex import MaybePattern, java_pattern
from waltap.changes.mapping.connect_schema import DECIMAL, ConnectKind, Schema, decimal_of, scale_of
from waltap.encoders.format.record_transform import (
    ConnectRecord,
    RecordTransform,
    RecordUnfit,
    SchemaMemory,
)
from waltap.ports.transforms.filter import user_function
from waltap_transforms.specs import debezium_spec

# Expressions over records, in CEL or as Python functions.
#
# A CEL expression (https://cel.dev) always ends and reads only the record. Most conditions look
# the same in CEL and Groovy. The library converts its input for each record, and a whole event
# costs more than most conditions. So an expression gets only the members that it names
# (`members`).

# The group of entry points with named functions.
ENTRY_POINTS = "waltap.expressions"

# The names that Debezium gives to scripts.
VARIABLES = ("key", "value", "keySchema", "valueSchema", "topic", "header")
VARIABLE_DECIMAL = "io.debezium.data.VariableScaleDecimal"

Expression = Callable[[ConnectRecord], object]
# Name of a member → tree of its own members; an empty tree means the whole member.
Tree = dict[str, Any]
View = Callable[[Any], Any]

# Texts and comments, in which a path is only text.
_LITERAL = re.compile(r"""'[^']*'|"[^"]*"|//[^\n]*""")
# A variable and the members after it; a name before a parenthesis is a function, not a member.
_PATH = r"(?<![\w.]){}\b((?:\s*\.\s*[A-Za-z_]\w*(?!\w)(?!\s*\())*)"
# Macros declare variables of their own: value.tags.exists(t, t == 'x').
_BOUND = re.compile(r"\.\s*(?:all|exists|exists_one|map|filter)\s*\(\s*(\w+)\s*,")
# Levels of members that a tree distinguishes, as in value.after.x; columns are at the second.
DEEPEST = 2


def compiled(text: str) -> Any:
    """Compile a CEL expression. Raises: ValueError with the reason."""
    # Profiles without an expression need not have the library installed.
    import cel

    try:
        program = cel.compile(text)
    except ValueError as cause:
        # The library's message repeats the expression on further lines.
        reason = str(cause).split("\n", 1)[0].rpartition("ERROR: ")[2]
        raise ValueError(f"not a CEL expression: {reason}") from cause
    unknown = set(program.variables()) - set(VARIABLES) - set(_BOUND.findall(text))
    if unknown:
        raise ValueError(
            f"nothing is called {', '.join(sorted(unknown))}; there are {', '.join(VARIABLES)}"
        )
    return program


def members(text: str, variable: str) -> Tree:
    """Return the members of ``variable`` that a CEL expression reads.

    An empty tree means all members. The result may have too many members but never too few: any notation
    other than ``value.after.id`` means all.
    """
    tree: Tree = {}
    # `_LITERAL` does not understand escapes and triple quotes.
    if "\\" in text or "'''" in text or '"""' in text:
        return tree
    for match in re.finditer(_PATH.format(variable), _LITERAL.sub("''", text)):
        path = [part.strip() for part in match[1].split(".")[1:]]
        if not path:
            return {}
        below = tree
        for depth, name in enumerate(path[:DEEPEST], 1):
            known = below.get(name)
            if known == {} and name in below:  # the expression reads the whole member already
                break
            if depth == min(len(path), DEEPEST):
                below[name] = {}
                break
            below = below.setdefault(name, {})
    return tree


def cel_expression(text: str) -> Expression:
    """Return the function that evaluates a CEL expression.

    An expression has the variables of Debezium's scripts: key, value, their schemas, topic, and header, a
    map from name to value and schema. Structs are maps with all their fields; decimals are doubles. The
    function raises RecordUnfit if the evaluation fails. Raises: ValueError.
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
            # Only the type of the error: its text may have values of the record.
            raise RecordUnfit(f"the expression fails: {type(cause).__name__}") from cause
        return found

    return evaluate


def python_function(path: str) -> Expression:
    """Load the function ``module:name`` or an entry point.

    Entry points are in the group `ENTRY_POINTS`. The module may be in the working directory. Raises:
    ValueError if there is no such function.
    """
    load: Callable[[], object] | None = None
    if ":" not in path:
        (point,) = entry_points(group=ENTRY_POINTS, name=path) or (None,)
        if point is None:
            raise ValueError(
                f"{path!r} is neither module:name nor an entry point of {ENTRY_POINTS}"
            )
        load = point.load
    found = user_function(path, load)

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
    """Return the function that prepares values for an expression.

    A struct keeps only the members in ``tree``. None means that values need no change.
    """
    # CEL has no decimals, so they become doubles.
    if schema.name == DECIMAL and schema.kind is ConnectKind.BYTES:
        scale = scale_of(schema)
        return lambda value: None if value is None else float(decimal_of(value, scale))
    if schema.name == VARIABLE_DECIMAL:
        return lambda value: (
            None if value is None else float(decimal_of(value["value"], value["scale"]))
        )
    if schema.kind is ConnectKind.ARRAY and schema.items is not None:
        # Trees do not describe elements, so these are prepared as a whole.
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


class ExpressionProperties(Properties):
    """Language of an expression, and the records for it."""

    # The field with the expression as written.
    text_field: ClassVar[str]

    topics: MaybePattern = declare(
        "topic.regex",
        summary="Pattern (Java's) of the topics whose records are concerned; it matches as a whole. "
        "Others pass as they are.",
        patterns="topics",
    )
    language: str = declare(
        "language",
        default="cel",
        summary="cel (the Common Expression Language), or python: the expression is a function "
        "of a record, as module:name or an entry point of the group "
        "`waltap.expressions`.",
        examples=("cel", "python"),
    )
    nulls: Literal["keep", "drop", "evaluate"] = declare(
        "null.handling.mode",
        default="keep",
        summary="Records with a null value, such as tombstones: keep them, leave them out, or "
        "evaluate the expression.",
    )

    @field_validator("language")
    @classmethod
    def _known(cls, value: str) -> str:
        language = value.strip().lower()
        # Profiles of Debezium have jsr223.groovy here, so the message shows the way to CEL.
        if language in ("cel", "python"):
            return language
        raise ValueError(
            f"{value} runs scripts inside of Java, and there is no Java here. Write the expression in "
            "CEL, with language=cel: value.op == 'u' && value.after.id > 2 is the same in both; or as a "
            "Python function, with language=python"
        )

    @model_validator(mode="after")
    def _readable(self) -> Self:
        # A bad expression fails when the profile is read, not at the first record.
        self.expression()
        return self

    def expression(self) -> Expression:
        """Compile the expression. Raises: ValueError."""
        text = getattr(self, self.text_field)
        return (python_function if self.language == "python" else cel_expression)(text)


class RecordFilterProperties(ExpressionProperties):
    """Condition for the records that stay."""

    text_field = "condition"

    condition: str = declare(
        "condition",
        summary="Expression that is true for the records that stay.",
        examples=("value.op == 'u' && value.before.id == 2",),
    )


class ContentBasedRouterProperties(ExpressionProperties):
    """Expression for the topic of records."""

    routes = True
    text_field = "topic_expression"

    topic_expression: str = declare(
        "topic.expression",
        summary="Expression that gives the record's topic; null: it stays where it is.",
        examples=("value.op == 'u' ? 'updates' : null",),
    )


def _scripted(
    properties: ExpressionProperties, use: Callable[[ConnectRecord, object], ConnectRecord | None]
) -> RecordTransform:
    """Return the transform that evaluates an expression of each record.

    ``use`` gets the record with the result, and returns None to drop it.
    """
    expression, topics = properties.expression(), None
    if properties.topics:
        topics = java_pattern(properties.topics, ignore_case=False)

    def changed(record: ConnectRecord) -> ConnectRecord | None:
        if topics is not None and not topics.fullmatch(record.topic):
            return record
        if record.value is None and properties.nulls != "evaluate":
            return record if properties.nulls == "keep" else None
        return use(record, expression(record))

    return lambda records: [made for each in records if (made := changed(each)) is not None]


def record_filter(properties: RecordFilterProperties) -> RecordTransform:
    """Return the transform that drops records for which a condition is false."""

    def filtered(record: ConnectRecord, found: object) -> ConnectRecord | None:
        # A text or number that counts as true would hide a mistake in the condition.
        if not isinstance(found, bool):
            raise RecordUnfit(f"the condition is {_kind(found)}, not true or false")
        return record if found else None

    return _scripted(properties, filtered)


def content_based_router(properties: ContentBasedRouterProperties) -> RecordTransform:
    """Return the transform that sets the topics of records by an expression."""

    def routed(record: ConnectRecord, topic: object) -> ConnectRecord:
        if topic is None:
            return record
        if not isinstance(topic, str):
            raise RecordUnfit(f"the topic is {_kind(topic)}, not text")
        return msgspec.structs.replace(record, topic=topic)

    return _scripted(properties, routed)


def _kind(found: Any) -> str:
    return "null" if found is None else f"of the type {type(found).__name__}"


SCRIPTING = (
    debezium_spec(
        "Filter",
        "Keeps the records for which an expression is true.",
        RecordFilterProperties,
        lambda properties, _context: record_filter(properties),
        name="record-filter",
    ),
    debezium_spec(
        "ContentBasedRouter",
        "Gives records the topic that an expression says.",
        ContentBasedRouterProperties,
        lambda properties, _context: content_based_router(properties),
    ),
)
