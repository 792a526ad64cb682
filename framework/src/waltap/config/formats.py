"""Which format writes keys, values and header values, and with which properties.

``[format] type`` is the format of keys and values; ``key.converter``, ``value.converter`` and
``header.converter`` name that of one side. What a side's format declares stands behind the side's name
(``value.converter.schema.registry.url``), or, for all sides at once, by itself (``schema.registry.url``).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Protocol, TypeVar

from pydantic import Field, ValidationError, create_model

from waltap.base.property import Properties, declarations
from waltap.config.layers import GivenProperty
from waltap.config.namespace import Namespace, ValidationResult
from waltap.config.profile import Component, TransformUse
from waltap.config.selection import SelectionProperties
from waltap.encoders.format.conversion import SIDES, headed, joined
from waltap.errors import PropertyProblem
from waltap.ports.specs import FormatSpec, RecordTransformSpec, Spec

if TYPE_CHECKING:
    from waltap.encoders.format.converter import Converter, ConverterContext

__all__ = ["DEFAULT_FORMAT", "FormatResolver", "sided"]

DEFAULT_FORMAT = "json"

S = TypeVar("S", bound=Spec)


class FormatLookup(Protocol):
    """Finds a spec by name or alias; says what is wrong where there is none."""

    def __call__(self, kind: type[S], name: str, place: str) -> S | None: ...


@lru_cache(maxsize=64)
def sided(model: type[Properties], side: str) -> type[Properties]:
    """Return ``model`` with its names behind ``SIDE.converter.``."""
    fields: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        extra = dict(info.json_schema_extra) if isinstance(info.json_schema_extra, dict) else {}
        extra["aliases"] = [f"{side}.converter.{other}" for other in extra.get("aliases", ())]  # type: ignore[union-attr]
        default = ... if info.is_required() else info.default
        field = Field(
            default,
            alias=f"{side}.converter.{info.alias}",
            description=info.description,
            examples=info.examples,
            json_schema_extra=extra,
        )
        annotation: Any = info.annotation
        for check in info.metadata:
            annotation = Annotated[annotation, check]
        fields[name] = (annotation, field)
    made = create_model(f"{model.__name__}Of{side.capitalize()}s", __base__=Properties, **fields)
    made.__doc__ = model.__doc__
    return made


class FormatResolver:
    """Chooses the formats of one profile. ``header``: that of header values where it names none."""

    def __init__(
        self,
        find: FormatLookup,
        component: Callable[[str, FormatSpec, Namespace], Component[FormatSpec] | None],
        flat: Namespace,
        findings: ValidationResult,
        header: str = DEFAULT_FORMAT,
    ) -> None:
        self._find, self._component, self._flat, self._findings = find, component, flat, findings
        self._header = header
        self._key: FormatSpec | None = None
        self._value: FormatSpec | None = None

    def chosen(
        self, choice: SelectionProperties, typed: GivenProperty | None
    ) -> Component[FormatSpec] | None:
        """Return the format of a profile; None with problems. ``typed`` is ``[format] type``."""
        found = self._specs(choice, typed)
        self._key, self._value = found[SIDES.index("key")], found[SIDES.index("value")]
        specs = tuple(spec for spec in found if spec is not None)
        if len(specs) < len(SIDES):
            for side, spec in zip(SIDES, found, strict=True):
                if spec is not None and spec.converter is not None:
                    self._side(side, spec)  # what is wrong there belongs into the same report
            return None
        key, value, header = specs
        if key is value and (value.converter is None or header is value) and _whole(value):
            return self._component("format", value, self._flat)
        for side, spec in zip(SIDES, specs, strict=True):
            if spec.converter is None:
                what = f"the format {spec.name} writes whole records: all sides have it, or none"
                self._findings.problems.append(
                    PropertyProblem(f"{side}.converter", what, value=spec.name)
                )
                return None
        if key is value and _whole(value):
            return self._headed(value, header)
        parts = [self._side(*each) for each in zip(SIDES, specs, strict=True)]
        if any(part is None for part in parts):
            return None
        return _joined(*(part for part in parts if part is not None))

    def refuse_others(self, uses: Sequence[TransformUse], *, all_known: bool) -> None:
        """Note what the formats of keys and values do not write of all that the transforms give them.
        ``all_known``: ``uses`` are all transforms that the profile names."""
        if all_known and not any(isinstance(use.spec, RecordTransformSpec) for use in uses):
            self._refuse_structs()
        if self._value is None or not self._value.events_only:
            return
        for use in uses:
            spec = use.spec
            if isinstance(spec, RecordTransformSpec) and spec.ends_events and use.predicate is None:
                what = (
                    f"the format {self._value.name} writes change events, and this makes others of them: "
                    "leave it out, or use another value.converter"
                )
                self._findings.problems.append(
                    PropertyProblem(f"transform {use.label}", what, value=spec.name)
                )

    def _refuse_structs(self) -> None:
        """Note the formats that write no events as they are. A table without a key has null keys, which
        every format writes."""
        for side, spec in (("value", self._value), ("key", self._key)):
            if spec is None or not spec.scalar:
                continue
            what = (
                f"the format {spec.name} writes no structs, and {side}s of change events are some: a "
                f"transform such as ExtractField${side.capitalize()} takes one field out of them"
            )
            if side == "value":
                problem = PropertyProblem("value.converter", what, value=spec.name)
                self._findings.problems.append(problem)
            else:
                self._findings.warnings.append(f"key.converter: {what}")

    def _specs(
        self, choice: SelectionProperties, typed: GivenProperty | None
    ) -> list[FormatSpec | None]:
        """Return the format of each side, None for one that there is not."""
        default = str(typed.value) if typed else None
        places = [("format.type", default or DEFAULT_FORMAT)] * 2
        if choice.value_converter is not None:
            places[1] = "value.converter", choice.value_converter
            if default is None:
                places[0] = places[1]
        if choice.key_converter is not None:
            places[0] = "key.converter", choice.key_converter
        places.append(("header.converter", choice.header_converter or self._header))
        found: dict[str, FormatSpec | None] = {}
        for place, name in dict.fromkeys(places[1::-1] + places[2:]):
            if found.get(name) is None:  # also where it was missed for another side: each is named
                found[name] = self._find(FormatSpec, name.strip(), place)
        return [found[name] for _, name in places]

    def _headed(self, spec: FormatSpec, header: FormatSpec) -> Component[FormatSpec] | None:
        """Return a format that writes keys and values itself, with header values of another."""
        form = self._component("format", spec, self._flat)
        side = self._side("header", header)
        if form is None or side is None:
            return None
        return replace(form, spec=replace(spec, factory=headed(spec.factory, partial(_made, side))))

    def _side(self, side: str, spec: FormatSpec) -> Component[FormatSpec] | None:
        model = spec.converter_properties or spec.properties
        settings = self._flat.settings
        if model is None:
            unread = f"{side}.converter.schemas.enable"  # Connect gives it to any converter
            if unread in settings:
                self._flat.claim(unread)
            return Component(spec)
        for declaration in declarations(model):
            own = f"{side}.converter.{declaration.name}"
            shared = settings.get(declaration.name)
            if shared is not None:
                self._flat.claim(declaration.name)
                settings.setdefault(own, GivenProperty(own, shared.value, shared.origin))
        filled = self._flat.model(f"{side} format {spec.name}", sided(model, side))
        if filled is None:
            return None
        values = {d.name: getattr(filled, d.field) for d in declarations(model)}
        try:
            return Component(spec, model.model_validate(values))
        except ValidationError as cause:  # of several properties together
            for error in cause.errors():
                what = str(error["msg"]).removeprefix("Value error, ")
                place = f"{side}.converter"
                self._findings.problems.append(PropertyProblem(place, what, value=spec.name))
            return None


def _whole(value: FormatSpec) -> bool:
    """Tell whether records with this format for keys and values are written by its own factory."""
    return value.converter is None or value.converter_properties is not None


def _joined(
    key: Component[FormatSpec], value: Component[FormatSpec], header: Component[FormatSpec]
) -> Component[FormatSpec]:
    """Return the format of records whose sides are written by converters."""
    parts = (key, value, header)
    factory = joined(*(partial(_made, part) for part in parts))
    name = value.spec.name
    if key.spec is not value.spec:
        name = f"{key.spec.name} and {name}"
    return Component(
        FormatSpec(
            name=name,
            summary=value.spec.summary,
            factory=factory,
            takes_events=True,
            takes_record_transforms=True,
        )
    )


def _made(part: Component[FormatSpec], context: "ConverterContext") -> "Converter":
    assert part.spec.converter is not None
    return part.spec.converter(part.properties, context)
