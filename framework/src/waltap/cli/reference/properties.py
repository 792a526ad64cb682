"""Generate the page of properties, grouped by component."""

import re
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any, Final

from waltap.base.property import Properties, PropertyDeclaration, declarations
from waltap.base.text import GENERATED
from waltap.changes.capture.properties import CaptureProperties
from waltap.config.debezium import OLD_NAMES
from waltap.config.pipeline_properties import EngineProperties, SinkBranchProperties
from waltap.config.profile import SelectionProperties
from waltap.plugins.host import Host
from waltap.ports.specs import Spec

INTRODUCTION = """\
A property that means the same as one of Debezium's has its name and default, so a connector's
file works unchanged; [the others](debezium.md). In a profile (TOML) `[source]`, `[engine]`,
`[format]` and `[offsets]` only group one namespace; sinks and transforms have their own. In a
Debezium file `waltap.sink.type` and `waltap.sink.NAME`, or `--sink`, give the sink.

Values may hold secrets as `${env:NAME}`, `${file:PATH}` or `${file:PATH:KEY}`; they are never shown.

A relative path in a profile starts at the profile's folder; in an argument (`--sink`, `--set`) or
in tables given to `waltap.stream()`, at the current directory.

A value in parentheses is the default. Without another form, a number is whole and at least 0, and a
list is separated by commas; the end of a name is the unit (`.ms`, `.bytes`). SIGHUP changes a
*reloadable* property during a run. *Records*: the property concerns only records of every format and
their topics, not the rows that a change log, Spark, SQL targets, lakes and files in columns get;
*rows* is the opposite. [Old names](debezium.md#old-names) of Debezium work, too.

Unless a section says otherwise, what belongs to the source is set in `[source]`, a format in
`[format]`, a sink in `[sink]` and a transform in `[[transforms]]`.
"""

USUAL: Final = frozenset({"[source]", "[format]", "[sink]", "[[transforms]]"})

# So many equal rows are listed once, by the first component that has them.
SHARED_ROWS: Final = 3

# A word of a summary, as a value is spelled; and the bounds of a number.
_WORD: Final = re.compile(r"[\w-]+")
_RANGE: Final = re.compile(r"^at least (\S+), at most (\S+)$")

_Row = tuple[str, str, str]

# `PropertyDeclaration.reach` → word about it. No word describes both kinds.
REACH = {
    ("records",): " Records.",
    ("rows",): " Rows.",
    (): " Changes no event.",
}


def components(host: Host) -> Iterator[tuple[str, str, type[Properties]]]:
    """Yield (heading, section, model) of each component with properties."""
    yield "Pipeline", "[source]", SelectionProperties
    yield "Capture and events", "[source]", CaptureProperties
    yield "Engine", "[engine]", EngineProperties
    yield "One of several sinks", "[[sinks]]", SinkBranchProperties
    kinds = (
        ("Connector", "[source]", host.connectors),
        ("Decoder", "[source]", host.decoders),
        ("Snapshot mode", "[source]", host.snapshotters),
        ("Topic naming", "[source]", host.topic_naming),
        ("Format", "[format]", host.formats),
        ("Offset store", "[offsets]", host.offset_stores),
        ("Signal channel", "[source]", host.signal_channels),
        ("Notification channel", "[source]", host.notification_channels),
        ("Sink", "[sink]", host.sinks),
        ("Table format", "[sink], as format.NAME", host.table_formats),
        ("Transform", "[[transforms]]", host.transforms),
        ("Predicate", "[predicates.NAME]", host.predicates),
        ("Converter of columns", "[[converters]]", host.converters),
    )
    for noun, section, specs in kinds:
        for name, spec in sorted(specs.items()):
            if spec.properties is not None:
                yield f"{noun} `{name}`", section, spec.properties


def properties_page(host: Host) -> str:
    """Return the page."""
    lines = ["# Properties", "", GENERATED, "", INTRODUCTION]
    shown: dict[str, list[_Row]] = {}
    for heading, section, model in components(host):
        lines += [f"## {heading}", ""]
        rows = [_row(declaration) for declaration in declarations(model)]
        same = next((name for name, others in shown.items() if others == rows), None)
        if same is not None:
            lines += [f"The same as {same}.", ""]
            continue
        first = (model.__doc__ or "").strip().split("\n\n")[0]
        lines += [first if section in USUAL else f"{first} Set in `{section}`.", ""]
        own, shared = _shared(rows, shown)
        lines += [
            f"- {name}{f' ({default})' if default else ''}: {meaning}"
            for name, default, meaning in own
        ]
        for name, common in shared.items():
            lines += ["", f"{_named(name, common, shown[name])}."]
        lines.append("")
        shown[heading] = rows
    return "\n".join(lines).rstrip() + "\n"


def _shared(
    rows: list[_Row], shown: dict[str, list[_Row]]
) -> tuple[list[_Row], dict[str, list[_Row]]]:
    """Return the rows that are new, and the others by component."""
    own, shared = rows, {}
    for name, others in shown.items():
        common = [row for row in own if row in others]
        if len(common) >= SHARED_ROWS:
            shared[name] = common
            own = [row for row in own if row not in common]
    return own, shared


def _named(heading: str, common: list[_Row], others: list[_Row]) -> str:
    """Return the rows that two components share, shortened."""
    anchor = heading.lower().replace("`", "").replace(" ", "-")
    link = f"[{heading}](#{anchor})"
    excepted = [row[0] for row in others if row not in common]
    if len(excepted) < len(common):
        return f"As in {link}: all but {', '.join(excepted)}" if excepted else f"As in {link}: all"
    return f"As in {link}: {', '.join(row[0] for row in common)}"


def _row(declaration: PropertyDeclaration) -> tuple[str, str, str]:
    meaning = declaration.summary
    allowed, unit = _allowed(declaration), declaration.unit or ""
    if declaration.name.endswith(f".{unit}"):
        unit = ""
    if allowed:
        meaning += f" *{allowed}*" + (f", in {unit}" if unit else "")
    elif unit:
        meaning += f" In {unit}."
    if declaration.secret:
        meaning += " **Secret.**"
    if declaration.reloadable:
        meaning += " Reloadable."
    meaning += REACH.get(declaration.reach, "")
    known = {*declaration.deprecated, *OLD_NAMES}  # debezium.md has these
    others = [n for n in declaration.names[1:] if n not in known]
    if others:
        meaning += f" Also called {', '.join(f'`{name}`' for name in others)}."
    # The present name may be deprecated itself; it is no old name then.
    old = declaration.deprecated.keys() - {declaration.name, *OLD_NAMES}
    if old:
        meaning += f" Old name: {', '.join(f'`{name}`' for name in sorted(old))}."
    examples = declaration.info.examples
    if examples:
        meaning += f" Example: {', '.join(f'`{example}`' for example in examples)}."
    return f"`{declaration.name}`", _default(declaration), meaning


def _allowed(declaration: PropertyDeclaration) -> str:
    """Return a value's form, unless default or summary shows it."""
    allowed = declaration.allowed
    if isinstance(declaration.default, bool) and allowed == "true or false":
        return ""
    if declaration.choices:
        described = set(_WORD.findall(declaration.summary))
        # A Java class is chosen by its last part, too.
        choices = [c for c in declaration.choices if c.rpartition(".")[2] not in described]
        short = [c for c in declaration.choices if c.rpartition(".")[2] == c]
        return ", ".join(short) if choices else ""
    # The introduction says that numbers are whole and at least 0, and lists have commas.
    allowed = allowed.removeprefix("a whole number, ").removeprefix("a ")
    allowed = {"at least 0": "", "comma list": "list"}.get(allowed, allowed)
    allowed = _RANGE.sub(r"\1 to \2", allowed).replace("at least ", "≥ ")
    return re.sub(r"matching (\S+)$", r"matching `\1`", allowed.removeprefix("string, "))


def _default(declaration: PropertyDeclaration) -> str:
    if declaration.required:
        return "required"
    # A family is a group of properties, so it has no single default.
    if declaration.family is not None:
        return ""
    text = _code(declaration.default)
    if declaration.pipeline_name:
        return f"the pipeline's name; in a Debezium file {text}"
    if declaration.profile_default is not None:
        text = f"{_code(declaration.profile_default)}; in a Debezium file {text or 'none'}"
    return text


def _code(value: object) -> str:
    if value is None or value in ((), ""):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list | tuple):
        return f"`{','.join(map(str, value))}`"
    return f"`{value}`"


SCALARS = {"type": ["string", "number", "boolean"]}


def profile_schema(host: Host) -> dict[str, Any]:
    """Return the schema of a profile."""
    # A dotted name is a nested table in TOML. The four sections share one namespace, so each
    # section accepts the properties of all.
    flat: dict[str, Any] = {}
    for _, section, model in components(host):
        if section in {"[source]", "[engine]", "[format]", "[offsets]"}:
            for declaration in declarations(model):
                flat.setdefault(declaration.name, declaration)
    shared = _nested(flat)
    transforms = _choice(host.transforms)
    transforms["properties"] |= {"predicate": {"type": "string"}, "negate": SCALARS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "waltap profile",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string"},
            "labels": {"type": "object"},
            "source": _section(shared, sorted(host.connectors), required=True),
            "engine": _section(shared, None),
            "format": _section(shared, sorted(host.formats)),
            "offsets": _section(shared, sorted(host.offset_stores)),
            "sink": _choice(host.sinks),
            "sinks": {"type": "array", "items": _branch_schema(shared, transforms, host)},
            "dead_letters": _choice(host.sinks),
            "transforms": {"type": "array", "items": transforms},
            "converters": {"type": "array", "items": _choice(host.converters)},
            "predicates": {"type": "object", "additionalProperties": _choice(host.predicates)},
        },
    }


def _branch_schema(
    shared: dict[str, Any], transforms: dict[str, Any], host: Host
) -> dict[str, Any]:
    branch = _choice(host.sinks)
    branch["properties"] |= _nested({d.name: d for d in declarations(SinkBranchProperties)})
    branch["properties"]["format"] = {
        "anyOf": [{"type": "string"}, _section(shared, sorted(host.formats))]
    }
    branch["properties"]["transforms"] = {"type": "array", "items": transforms}
    return branch


def _section(
    shared: dict[str, Any], names: list[str] | None, *, required: bool = False
) -> dict[str, Any]:
    properties = dict(shared)
    if names is not None:
        properties["type"] = {"type": "string", "examples": names}
    section: dict[str, Any] = {"type": "object", "properties": properties}
    return section | {"required": ["type"]} if required else section


def _choice(specs: Mapping[str, Spec]) -> dict[str, Any]:
    """Return the schema of an object whose ``type`` decides its properties."""
    branches = []
    for name, spec in sorted(specs.items()):
        flat = {d.name: d for d in declarations(spec.properties)} if spec.properties else {}
        branches.append(
            {
                "if": {"properties": {"type": {"const": name}}},
                # ``type`` itself is a property of every branch, where ``type.change`` is one too.
                "then": {"properties": _nested(flat) | {"type": True}},
            }
        )
    return {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"type": "string", "examples": sorted(specs)}},
        "allOf": branches,
    }


def _nested(flat: dict[str, PropertyDeclaration]) -> dict[str, Any]:
    """Return the schema of dotted names as nested TOML tables."""
    tree: dict[str, Any] = {}
    for name, declaration in flat.items():
        level = tree
        *tables, last = name.split(".")
        if declaration.family is None:
            tree[name] = _value(declaration)  # also as one quoted key
        for each in takewhile(str.islower, tables):  # a family has no fixed names to complete
            level = _joined(level, each, {"type": "object", "properties": {}})["properties"]
        if declaration.family is None:
            _joined(level, last, _value(declaration))
    return tree


def _joined(level: dict[str, Any], name: str, schema: dict[str, Any]) -> dict[str, Any]:
    node: dict[str, Any] = schema | level.get(name, {})
    if node.keys() >= {"description", "properties"}:  # ``a`` and ``a.b`` are both properties
        node = {key: node[key] for key in node if key not in {"type", "anyOf", "items"}}
    level[name] = node
    return node


def _value(declaration: PropertyDeclaration) -> dict[str, Any]:
    # ``${env:NAME}`` represents any value, so that numbers and booleans may be strings, too.
    schema: dict[str, Any] = {"description": declaration.summary}
    if declaration.choices:
        # A profile may write a choice in any case, which patterns cannot ignore.
        blind = ("".join(f"[{c.lower()}{c.upper()}]" for c in each) for each in declaration.choices)
        placeholder = {"type": "string", "pattern": rf"\$\{{|^\s*({'|'.join(blind)})\s*$"}
        numbers = [int(choice) for choice in declaration.choices if choice.isdigit()]
        schema["anyOf"] = [{"enum": [*declaration.choices, *numbers]}, placeholder]
    elif declaration.allowed.startswith("true"):
        schema["type"] = ["boolean", "integer", "string"]
    elif declaration.allowed.startswith("a whole number"):
        schema["type"] = ["integer", "string"]
    elif declaration.allowed.startswith("a comma list"):
        schema |= {"type": ["array", "string"], "items": SCALARS}
    default = declaration.profile_default
    default = declaration.default if default is None else default
    # Some properties have the pipeline's name as their default, which the schema cannot know.
    if isinstance(default, bool | int | str) and not declaration.pipeline_name:
        schema["default"] = default
    return schema
