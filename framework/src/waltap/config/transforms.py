"""The transforms of a profile, in its order, and the predicates that say which records they concern.

In a Debezium file ``transforms=a,b`` names them, ``transforms.a.type`` and ``transforms.a.NAME`` say
what they are; ``predicates=p`` and ``predicates.p.*`` do so for predicates, and
``transforms.a.predicate=p`` joins the two. A profile of waltap's has tables: ``[[transforms]]`` and
``[predicates.p]``.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from waltap.base.property import Properties, declarations
from waltap.base.text import nearest
from waltap.config.layers import GivenProperty, RawProfile
from waltap.config.namespace import Namespace, ValidationResult
from waltap.config.profile import Component, TransformUse
from waltap.errors import PropertyProblem
from waltap.ports.specs import PredicateSpec, RecordTransformSpec, Spec, TransformSpec

__all__ = ["TransformResolver"]

S = TypeVar("S", bound=Spec)

BOOLEANS = {"true": True, "false": False}


class TransformLookup(Protocol):
    """Finds a spec by name or alias; says what is wrong where there is none."""

    def __call__(self, kind: type[S], name: str, place: str) -> S | None: ...


class TransformResolver:
    """Chooses the transforms of one profile."""

    def __init__(
        self,
        find: TransformLookup,
        component: Callable[[str, Any, Namespace], Component[Any] | None],
        models: Callable[[type[Spec]], list[type[Properties]]],
        raw: RawProfile,
        findings: ValidationResult,
    ) -> None:
        self._find, self._component, self._models = find, component, models
        self._raw, self._findings = raw, findings
        self._predicates: dict[str, Component[PredicateSpec] | None] = {}

    def chosen(self) -> tuple[TransformUse, ...]:
        """Return the transforms that have no problem."""
        self._predicates = {
            label: self._predicate(label, settings)
            for label, settings in self._raw.predicates.items()
        }
        found = [
            self._transform(number, settings)
            for number, settings in enumerate(self._raw.transforms, 1)
        ]
        self._order(found)
        return tuple(use for use in found if use is not None)

    def _predicate(
        self, label: str, settings: Mapping[str, GivenProperty]
    ) -> Component[PredicateSpec] | None:
        prefix = f"{self._raw.written}predicates.{label}."
        native = f"[predicates.{label}] " if self._raw.debezium else ""
        made = self._one(PredicateSpec, f"predicate {label}", settings, prefix, native)
        return made if made is None else made[0]

    def _transform(self, number: int, settings: Mapping[str, GivenProperty]) -> TransformUse | None:
        prefix = self._raw.transform_names[number - 1]
        native = "[[transforms]] " if self._raw.debezium else ""
        made = self._one(TransformSpec, f"transform {number}", settings, prefix, native)
        if made is None:
            return None
        component, space = made
        predicate, negate, sound = self._condition(component.spec, space, prefix)
        space.leftovers(
            tolerant=isinstance(component.spec, RecordTransformSpec) and self._tolerant(component)
        )
        if not sound:
            return None
        alias = prefix.removeprefix(f"{self._raw.written}transforms.").removesuffix(".")
        label = f"{alias} ({component.spec.name})" if self._raw.debezium else component.spec.name
        return TransformUse(component.spec, component.properties, label, predicate, negate)

    def _one(
        self,
        kind: type[S],
        role: str,
        settings: Mapping[str, GivenProperty],
        prefix: str,
        native: str,
    ) -> tuple[Component[S], Namespace] | None:
        """Return the component that a table describes, and what of the table is left."""
        space = Namespace(settings, self._findings, prefix, native)
        name = space.settings.pop("type", None)
        if name is None:
            hint = f"{native}type" if native else None
            self._findings.problems.append(
                PropertyProblem(f"{prefix}type", "is missing", native=hint)
            )
            return None
        spec = self._find(kind, str(name.value).strip(), f"{prefix}type")
        component = self._component(role, spec, space)
        if spec is None:
            space.tolerate(self._models(kind))
            for shared in ("predicate", "negate"):
                space.claim(shared)
        if spec is None or kind is PredicateSpec:
            space.leftovers(likely=spec is None, tolerant=self._tolerant(component))
        return None if component is None else (component, space)

    def _tolerant(self, component: Component[S] | None) -> bool:
        """Tell whether names that a component does not have are left aside, as Kafka Connect does: not
        where it lacks a property, which one of them may be meant to be."""
        if component is None or not self._raw.debezium:
            return False
        return component.spec.properties is None or component.properties is not None

    def _condition(
        self, spec: TransformSpec, space: Namespace, prefix: str
    ) -> tuple[Component[PredicateSpec] | None, bool, bool]:
        """Return ``predicate`` and ``negate`` of a transform, and whether they can be."""
        own = declarations(spec.properties) if spec.properties is not None else []
        taken = {name for declaration in own for name in (*declaration.names, *declaration.refused)}
        given = {
            name: space.settings[name]
            for name in ("predicate", "negate")
            if name in space.settings and name not in taken
        }
        for name in given:
            space.claim(name)
        before = len(self._findings.problems)
        if given and not isinstance(spec, RecordTransformSpec):
            for setting in given.values():
                what = f"predicates look at records, and {spec.name} works on changes, before that"
                space.complain(setting, what)
            return None, False, False
        negate = self._truth(given["negate"], space) if "negate" in given else False
        if "predicate" not in given:
            if "negate" in given:
                space.complain(given["negate"], f"needs {prefix}predicate, which it turns round")
            return None, False, len(self._findings.problems) == before
        label = str(given["predicate"].value).strip()
        if label not in self._predicates:
            known = sorted(self._predicates)
            allowed = ", ".join(known) if known else None
            if self._raw.debezium and allowed is None:
                allowed = f"a name that predicates lists: predicates={label or 'NAME'}"
            elif allowed is None:
                allowed = f"a table of its own: [predicates.{label or 'NAME'}]"
            space.complain(
                given["predicate"],
                "no predicate has this name",
                allowed=allowed,
                guess=nearest(label, known),
            )
        found = self._predicates.get(label)
        return found, negate, len(self._findings.problems) == before

    def _truth(self, setting: GivenProperty, space: Namespace) -> bool:
        text = str(setting.value).strip().lower()
        if text not in BOOLEANS:
            space.complain(setting, "is no truth value", allowed="true or false")
        return BOOLEANS.get(text, False)

    def _order(self, found: list[TransformUse | None]) -> None:
        """Refuse what the profile puts after a transform of records and must run before it."""
        of_records: str | None = None
        for number, use in enumerate(found):
            if use is None:
                continue
            if isinstance(use.spec, RecordTransformSpec):
                of_records = of_records or use.label
            elif of_records is not None:
                prefix = self._raw.transform_names[number]
                what = (
                    f"{use.spec.name} works on changes, before there are records, and stands after "
                    f"{of_records}, which works on records"
                )
                allowed = "an order with transforms of changes first"
                self._findings.problems.append(
                    PropertyProblem(f"{prefix}type", what, allowed=allowed)
                )
