"""Generate a JSON Schema of the TOML profile for editors."""

from typing import TYPE_CHECKING, Any

from waltap.base.property import Properties, PropertyDeclaration, declarations
from waltap.cli.reference.properties import components
from waltap.config.pipeline_properties import SinkBranchProperties

if TYPE_CHECKING:
    from waltap.plugins.host import Host


SCALARS = {"type": ["string", "number", "boolean"]}


def profile_schema(host: "Host") -> dict[str, Any]:
    """Return the schema of a profile."""
    # A dotted name is a nested table in TOML. The four sections share one namespace, so each
    # section accepts the properties of all.
    flat: dict[str, Any] = {}
    for _, section, model in components(host):
        if section in {"[source]", "[engine]", "[format]", "[offsets]"}:
            for declaration in declarations(model):
                flat.setdefault(declaration.name, declaration)
    shared = _nested(flat)
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
            "sink": _choice({name: spec.properties for name, spec in sorted(host.sinks.items())}),
            "sinks": {"type": "array", "items": _branch_schema(shared, host)},
            "transforms": {
                "type": "array",
                "items": _choice(
                    {name: spec.properties for name, spec in sorted(host.transforms.items())},
                    {"predicate": {"type": "string"}, "negate": {"type": ["boolean", "string"]}},
                ),
            },
            "converters": {
                "type": "array",
                "items": _choice(
                    {name: spec.properties for name, spec in sorted(host.converters.items())}
                ),
            },
            "predicates": {
                "type": "object",
                "additionalProperties": _choice(
                    {name: spec.properties for name, spec in sorted(host.predicates.items())}
                ),
            },
        },
    }


def _branch_schema(shared: dict[str, Any], host: "Host") -> dict[str, Any]:
    """Return the schema of one entry of ``[[sinks]]``."""
    branch = _choice({name: spec.properties for name, spec in sorted(host.sinks.items())})
    branch["properties"] |= _nested({d.name: d for d in declarations(SinkBranchProperties)})
    branch["properties"]["format"] = {
        "anyOf": [{"type": "string"}, _section(shared, sorted(host.formats))]
    }
    branch["properties"]["transforms"] = {
        "type": "array",
        "items": _choice({name: spec.properties for name, spec in sorted(host.transforms.items())}),
    }
    return branch


def _section(
    shared: dict[str, Any], names: list[str] | None, *, required: bool = False
) -> dict[str, Any]:
    properties = dict(shared)
    if names is not None:
        properties["type"] = {"type": "string", "examples": names}
    section: dict[str, Any] = {"type": "object", "properties": properties}
    return section | {"required": ["type"]} if required else section


def _choice(
    models: dict[str, type[Properties] | None], others: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the schema of an object whose ``type`` decides its properties.

    ``others`` are allowed for every type.
    """
    branches = []
    for name, model in models.items():
        flat = {d.name: d for d in declarations(model)} if model is not None else {}
        branches.append(
            {
                "if": {"properties": {"type": {"const": name}}},
                # ``type`` itself belongs to the properties of every branch.
                "then": {"properties": {"type": True, **_nested(flat)}},
            }
        )
    return {
        "type": "object",
        "required": ["type"],
        "properties": {"type": {"type": "string", "examples": list(models)}, **(others or {})},
        "allOf": branches,
    }


def _nested(flat: dict[str, PropertyDeclaration]) -> dict[str, Any]:
    """Return the schema of dotted names as nested TOML tables."""
    tree: dict[str, Any] = {}
    for name, declaration in flat.items():
        # A family has no fixed names to complete.
        if declaration.family is not None:
            continue
        tree[name] = _value(declaration)  # also as one quoted key
        level = tree
        *tables, last = name.split(".")
        for table in tables:
            node = level.setdefault(table, {"type": "object", "properties": {}})
            node.setdefault("properties", {})
            level = node["properties"]
        # A name may be a value and a table: ``a`` and ``a.b`` are both properties.
        level[last] = _value(declaration) | (
            {"properties": level[last]["properties"]} if "properties" in level.get(last, {}) else {}
        )
    return tree


def _value(declaration: PropertyDeclaration) -> dict[str, Any]:
    # Numbers and booleans may be strings, too: ``${env:NAME}`` represents any value.
    schema: dict[str, Any] = {"description": declaration.summary}
    if declaration.choices:
        schema["enum"] = list(declaration.choices)
    elif declaration.allowed.startswith("true"):
        schema["type"] = ["boolean", "string"]
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
