"""The sink that gets a copy of every dead letter: the table ``[dead_letters]`` of a profile."""

from collections.abc import Callable
from typing import Any

from waltap.config.layers import RawProfile
from waltap.config.namespace import Namespace, ValidationResult
from waltap.config.profile import Component
from waltap.config.property import Properties
from waltap.config.transforms import TransformLookup
from waltap.errors import PropertyProblem
from waltap.specs import SinkSpec, Spec

__all__ = ["copy_of_letters"]

PLACE = "dead_letters."


def copy_of_letters(
    find: TransformLookup,
    component: Callable[[str, Any, Namespace], Component[Any] | None],
    models: Callable[[type[Spec]], list[type[Properties]]],
    raw: RawProfile,
    findings: ValidationResult,
) -> Component[SinkSpec] | None:
    """Return the sink that is named there, None without one, or with problems."""
    if not raw.dead_letters:
        return None
    space = Namespace(dict(raw.dead_letters), findings, PLACE)
    given = space.settings.pop("type", None)
    if given is None:
        findings.problems.append(
            PropertyProblem(f"{PLACE}type", "is missing", allowed="the name of a sink")
        )
        return None
    spec = find(SinkSpec, str(given.value), f"{PLACE}type")
    if spec is None:
        space.tolerate(models(SinkSpec))
    found = None if spec is None else component("sink of dead letters", spec, space)
    space.leftovers(likely=spec is None)
    return found
