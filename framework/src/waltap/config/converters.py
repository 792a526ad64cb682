"""The converters of columns of a profile, in its order.

In a Debezium file ``converters=a,b`` names them, ``a.type`` and ``a.NAME`` say what they are; a profile of
waltap's has ``[[converters]]`` tables.
"""

import re
from collections.abc import Callable
from typing import Any

from waltap.config.layers import RawProfile
from waltap.config.namespace import Namespace, ValidationResult
from waltap.config.profile import Component, ConverterUse
from waltap.config.property import Properties
from waltap.config.transforms import TransformLookup
from waltap.errors import PropertyProblem
from waltap.specs import ColumnConverterSpec, Spec

__all__ = ["converters"]

JAVA_CLASS = re.compile(r"\w+(\.\w+)*\.[A-Z][\w$]*")


def converters(
    find: TransformLookup,
    component: Callable[[str, Any, Namespace], Component[Any] | None],
    models: Callable[[type[Spec]], list[type[Properties]]],
    raw: RawProfile,
    findings: ValidationResult,
) -> tuple[ConverterUse, ...]:
    """Return those that have no problem."""
    found = []
    for prefix, settings in raw.converters.items():
        native = "[[converters]] " if raw.debezium else ""
        space = Namespace(settings, findings, prefix, native)
        given = space.settings.pop("type", None)
        if given is None:
            hint = f"{native}type" if native else None
            findings.problems.append(PropertyProblem(f"{prefix}type", "is missing", native=hint))
            continue
        name = str(given.value).strip()
        before = len(findings.problems)
        spec = find(ColumnConverterSpec, name, f"{prefix}type")
        if spec is None:
            if JAVA_CLASS.fullmatch(name):
                del findings.problems[before:]
                findings.problems.append(_java(f"{prefix}type", name))
            space.tolerate(models(ColumnConverterSpec))
        made = component(f"converter {prefix[:-1]}", spec, space)
        space.leftovers(likely=spec is None)
        if spec is not None and made is not None:
            label = f"{prefix[:-1]} ({spec.name})" if raw.debezium else spec.name
            found.append(ConverterUse(spec, made.properties, label))
    return tuple(found)


def _java(place: str, name: str) -> PropertyProblem:
    what = "names a Java class, which waltap cannot load, and no plugin takes its place"
    allowed = (
        "the name of a converter that a plugin's register_converters contributes; with this class among "
        "its aliases it is found by it: docs/plugin-authors/write-a-converter.md"
    )
    return PropertyProblem(place, what, value=name, allowed=allowed)
