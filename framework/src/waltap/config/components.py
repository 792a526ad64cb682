"""Choose formats, transforms, column converters and several sinks of a profile."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Annotated, Any, NoReturn, Protocol, TypeVar

from pydantic import Field, ValidationError, create_model

from waltap.base.plugin_errors import part_of
from waltap.base.property import Properties, declarations
from waltap.base.text import nearest
from waltap.changes.capture.properties import CaptureProperties
from waltap.config.layers import GivenProperty, RawProfile, RawSinkBranch
from waltap.config.namespace import Namespace, ValidationResult
from waltap.config.pipeline_properties import SinkBranchProperties
from waltap.config.profile import (
    Component,
    SelectionProperties,
    SinkBranchProfile,
    TransformUse,
)
from waltap.encoders.format.conversion import RECORD_PARTS, headed, joined
from waltap.encoders.format.converter import Converter, ConverterContext
from waltap.errors import PropertyProblem
from waltap.ports.specs import (
    ColumnConverterSpec,
    FormatSpec,
    PredicateSpec,
    RecordTransformSpec,
    SinkSpec,
    Spec,
    TransformSpec,
)

# Which format writes keys, values and header values, and with which properties.
#
# ``[format] type`` is the format of keys and values; ``key.converter``, ``value.converter`` and
# ``header.converter`` name the format of one part of records. The properties of such a format follow the
# part's name (``value.converter.schema.registry.url``), or, for all parts at once, by itself
# (``schema.registry.url``).

DEFAULT_FORMAT = "json"

S = TypeVar("S", bound=Spec)


class SpecLookup(Protocol):
    """Find a spec by name or alias; record a problem without one."""

    def __call__(self, kind: type[S], name: str, property_name: str) -> S | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentTables:
    """Read a profile's tables of one component each, by ``type``."""

    raw: RawProfile
    findings: ValidationResult
    find: SpecLookup
    # Makes the component of a role and spec from a set of settings.
    make: Callable[[str, Any, Namespace], Component[Any] | None]
    # A kind of component → the property models of all its specs.
    models: Callable[[type[Spec]], list[type[Properties]]]

    def read(
        self,
        kind: type[S],
        role: str,
        settings: Mapping[str, GivenProperty],
        prefix: str,
        native: str = "",
        allowed: str | None = None,
    ) -> tuple[Component[S] | None, Namespace] | None:
        """Return component and namespace of a table; None without a type.

        ``prefix`` and ``native`` are as for `Namespace`. There is no component without a spec.
        """
        space = Namespace(settings, self.findings, prefix, native)
        given = space.settings.pop("type", None)
        if given is None:
            hint = f"{native}type" if native else None
            self.findings.add_problem(f"{prefix}type", "is missing", allowed=allowed, native=hint)
            return None
        spec = self.find(kind, str(given.value).strip(), f"{prefix}type")
        if spec is None:
            # One of the kind was meant, so the properties of all are known.
            space.tolerate(self.models(kind))
        return self.make(role, spec, space), space

    def converters(self) -> tuple[Component[ColumnConverterSpec], ...]:
        """Return the column converters without a problem.

        In a Debezium file ``converters=a,b`` names them and ``a.type`` chooses; a waltap profile has
        ``[[converters]]`` tables.
        """
        found = []
        problems = self.findings.problems
        for prefix, settings in self.raw.converters.items():
            native = "[[converters]] " if self.raw.debezium else ""
            before = len(problems)
            role = f"converter {prefix[:-1]}"
            read = self.read(ColumnConverterSpec, role, settings, prefix, native)
            if read is None:
                continue
            made, space = read
            name = str(settings["type"].value).strip()
            if made is None and JAVA_CLASS.fullmatch(name):
                del problems[before:]
                problems.append(_java_class(f"{prefix}type", name))
            space.leftovers(likely=made is None)
            if made is not None:
                label = f"{prefix[:-1]} ({made.spec.name})" if self.raw.debezium else made.spec.name
                found.append(replace(made, label=label))
        return tuple(found)

    def dead_letter_sink(self) -> Component[SinkSpec] | None:
        """Return the sink of ``[dead_letters]``, None without one or with problems."""
        settings, role = self.raw.dead_letters, "sink of dead letters"
        if not settings:
            return None
        allowed = "the name of a sink"
        read = self.read(SinkSpec, role, settings, "dead_letters.", allowed=allowed)
        if read is None:
            return None
        made, space = read
        space.leftovers(likely=made is None)
        return made


JAVA_CLASS = re.compile(r"\w+(\.\w+)*\.[A-Z][\w$]*")


def _java_class(property_name: str, name: str) -> PropertyProblem:
    what = "names a Java class, which waltap cannot load, and no plugin replaces it"
    allowed = (
        "the name of a converter that a plugin's register_converters contributes; with this class among "
        "its aliases it is found by it: docs/plugin-authors/write-a-converter.md"
    )
    return PropertyProblem(property_name, what, value=name, allowed=allowed)


@lru_cache(maxsize=64)
def model_of_part(model: type[Properties], record_part: str) -> type[Properties]:
    """Return ``model`` with its names behind ``PART.converter.``."""
    fields: dict[str, Any] = {}
    for name, info in model.model_fields.items():
        extra = dict(info.json_schema_extra) if isinstance(info.json_schema_extra, dict) else {}
        aliases: Any = extra.get("aliases", ())
        extra["aliases"] = [f"{record_part}.converter.{other}" for other in aliases]
        default = ... if info.is_required() else info.default
        made_field = Field(
            default,
            alias=f"{record_part}.converter.{info.alias}",
            description=info.description,
            examples=info.examples,
            json_schema_extra=extra,
        )
        annotation: Any = info.annotation
        for check in info.metadata:
            annotation = Annotated[annotation, check]
        fields[name] = (annotation, made_field)
    made = create_model(
        f"{model.__name__}Of{record_part.capitalize()}s", __base__=Properties, **fields
    )
    made.__doc__ = model.__doc__
    return made


class FormatResolver:
    """Chooses the formats of one profile.

    ``header`` is the default format of header values.
    """

    def __init__(self, tables: ComponentTables, flat: Namespace, header: str) -> None:
        self._find, self._component, self._findings = tables.find, tables.make, tables.findings
        self._flat, self._header = flat, header
        self._key: FormatSpec | None = None
        self._value: FormatSpec | None = None
        self._only_events = False

    def chosen(
        self, choice: SelectionProperties, typed: GivenProperty | None
    ) -> Component[FormatSpec] | None:
        """Return the format of a profile; None with problems.

        ``typed`` is ``[format] type``.
        """
        found = self._specs(choice, typed)
        self._key = found[RECORD_PARTS.index("key")]
        self._value = found[RECORD_PARTS.index("value")]
        specs = tuple(spec for spec in found if spec is not None)
        if len(specs) < len(RECORD_PARTS):
            for record_part, spec in zip(RECORD_PARTS, found, strict=True):
                if spec is not None and spec.converter is not None:
                    # What is wrong there belongs into the same report.
                    self._record_part(record_part, spec)
            return None
        key, value, header = specs
        if key is value and (value.converter is None or header is value) and _writes_both(value):
            return self._of_values(self._component("format", value, self._flat))
        for record_part, spec in zip(RECORD_PARTS, specs, strict=True):
            if spec.converter is None:
                what = (
                    f"the format {spec.name} writes whole records: all their parts have it, or none"
                )
                self._findings.add_problem(f"{record_part}.converter", what, value=spec.name)
                return None
        if key is value and _writes_both(value):
            return self._of_values(self._headed(value, header))
        parts = [self._record_part(*each) for each in zip(RECORD_PARTS, specs, strict=True)]
        self._of_values(parts[RECORD_PARTS.index("value")])
        if any(part is None for part in parts):
            return None
        return _joined(*(part for part in parts if part is not None))

    def _of_values(self, made: Component[FormatSpec] | None) -> Component[FormatSpec] | None:
        """Return ``made``, the format of values, after a look at its properties."""
        only = None if self._value is None else self._value.change_events_only
        self._only_events = made is not None and only is not None and only(made.properties)
        return made

    def refuse_others(self, uses: Sequence[TransformUse], *, all_known: bool) -> None:
        """Record parts of transforms' records that the formats cannot write.

        ``all_known``: ``uses`` are all transforms that the profile names.
        """
        if all_known and not any(isinstance(use.spec, RecordTransformSpec) for use in uses):
            self._refuse_structs()
        if self._value is None or not self._only_events:
            return
        for use in uses:
            spec = use.spec
            if (
                isinstance(spec, RecordTransformSpec)
                and spec.replaces_events
                and use.predicate is None
            ):
                what = (
                    f"the format {self._value.name} writes change events, and this makes others of them: "
                    "leave it out, or use another value.converter"
                )
                self._findings.add_problem(f"transform {use.label}", what, value=spec.name)

    def _refuse_structs(self) -> None:
        """Record the formats that cannot write unchanged events.

        A table without a key has null keys, which every format writes.
        """
        for record_part, spec in (("value", self._value), ("key", self._key)):
            if spec is None or not spec.scalar:
                continue
            what = (
                f"the format {spec.name} writes no structs, as {record_part}s of change events are; a "
                f"transform such as ExtractField${record_part.capitalize()} takes one field out of them"
            )
            if record_part == "value":
                self._findings.add_problem("value.converter", what, value=spec.name)
            else:
                self._findings.warnings.append(f"key.converter: {what}")

    def _specs(
        self, choice: SelectionProperties, typed: GivenProperty | None
    ) -> list[FormatSpec | None]:
        """Return the format of each record part, or None."""
        default = str(typed.value) if typed else None
        choices = [("format.type", default or DEFAULT_FORMAT)] * 2
        if choice.value_converter is not None:
            choices[1] = "value.converter", choice.value_converter
            if default is None:
                choices[0] = choices[1]
        if choice.key_converter is not None:
            choices[0] = "key.converter", choice.key_converter
        choices.append(("header.converter", choice.header_converter or self._header))
        found: dict[str, FormatSpec | None] = {}
        for property_name, name in dict.fromkeys(choices[1::-1] + choices[2:]):
            if found.get(name) is None:  # also where it was missed for another part: each is named
                found[name] = self._find(FormatSpec, name.strip(), property_name)
        return [found[name] for _, name in choices]

    def _headed(self, spec: FormatSpec, header: FormatSpec) -> Component[FormatSpec] | None:
        """Combine a format of keys and values with another for headers."""
        form = self._component("format", spec, self._flat)
        record_part = self._record_part("header", header)
        if form is None or record_part is None:
            return None
        factory = headed(spec.factory, partial(_made, record_part))
        return replace(form, spec=replace(spec, factory=factory), parts=(record_part,))

    def _record_part(self, record_part: str, spec: FormatSpec) -> Component[FormatSpec] | None:
        model = spec.converter_properties or spec.properties
        settings = self._flat.settings
        own_names = set() if model is None else {each.name for each in declarations(model)}
        ignored = f"{record_part}.converter.schemas.enable"  # Connect gives it to any converter
        if "schemas.enable" not in own_names and ignored in settings:
            self._flat.claim(ignored)
        if model is None:
            return Component(spec, label=record_part)
        events = {each.name for each in declarations(CaptureProperties)}
        for declaration in declarations(model):
            own = f"{record_part}.converter.{declaration.name}"
            shared = settings.get(declaration.name)
            if shared is not None and declaration.name not in events:
                self._flat.claim(declaration.name)
                settings.setdefault(own, GivenProperty(own, shared.value, shared.origin))
        filled = self._flat.model(
            f"{record_part} format {spec.name}", model_of_part(model, record_part)
        )
        if filled is None:
            return None
        values = {d.name: getattr(filled, d.field) for d in declarations(model)}
        try:
            return Component(spec, model.model_validate(values), label=record_part)
        except ValidationError as cause:  # by a check of the model's own
            for error in cause.errors():
                what = str(error["msg"]).removeprefix("Value error, ")
                name = ".".join([f"{record_part}.converter", *map(str, error["loc"][:1])])
                self._findings.add_problem(name, what, value=None if error["loc"] else spec.name)
            return None


def _writes_both(value: FormatSpec) -> bool:
    """Return whether one factory writes both keys and values."""
    return value.converter is None or value.converter_properties is not None


def _joined(
    key: Component[FormatSpec], value: Component[FormatSpec], header: Component[FormatSpec]
) -> Component[FormatSpec]:
    """Return the format of records whose parts are written by converters."""
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
        ),
        parts=parts,
    )


def _made(part: Component[FormatSpec], context: ConverterContext) -> Converter:
    assert part.spec.converter is not None
    made: Converter = part_of(part.spec.converter, Converter, part.properties, context)
    return made


# The transforms of a profile, in its order, and the predicates that say which records they
# concern.
#
# In a Debezium file ``transforms=a,b`` names them, ``transforms.a.type`` and
# ``transforms.a.NAME`` say what they are; ``predicates=p`` and ``predicates.p.*`` do so for
# predicates, and ``transforms.a.predicate=p`` joins the two. A profile of waltap's has tables:
# ``[[transforms]]`` and ``[predicates.p]``.


BOOLEANS = {"true": True, "false": False}


class TransformResolver:
    """Chooses the transforms of one profile."""

    def __init__(self, tables: ComponentTables) -> None:
        self._tables, self._raw, self._findings = tables, tables.raw, tables.findings
        self._predicates: dict[str, Component[PredicateSpec] | None] = {}

    def chosen(self) -> tuple[TransformUse, ...]:
        self._predicates = {
            label: self._predicate(label, settings)
            for label, settings in self._raw.predicates.items()
        }
        found = [
            self._transform(number, prefix, settings)
            for number, (prefix, settings) in enumerate(self._raw.transforms.items(), 1)
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

    def _transform(
        self, number: int, prefix: str, settings: Mapping[str, GivenProperty]
    ) -> TransformUse | None:
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
        return TransformUse(
            component.spec, component.properties, label, predicate=predicate, negate=negate
        )

    def _one(
        self,
        kind: type[S],
        role: str,
        settings: Mapping[str, GivenProperty],
        prefix: str,
        native: str,
    ) -> tuple[Component[S], Namespace] | None:
        """Return a table's component, and the table's remaining settings."""
        read = self._tables.read(kind, role, settings, prefix, native)
        if read is None:
            return None
        component, space = read
        if component is None:
            space.claim("predicate")
            space.claim("negate")
        if component is None or kind is PredicateSpec:
            space.leftovers(likely=component is None, tolerant=self._tolerant(component))
        return None if component is None else (component, space)

    def _tolerant(self, component: Component[S] | None) -> bool:
        """Return whether unknown names are ignored, as in Kafka Connect.

        Not if a property is missing: an unknown name may be a misspelling of it.
        """
        if component is None or not self._raw.debezium:
            return False
        return component.spec.properties is None or component.properties is not None

    def _condition(
        self, spec: TransformSpec, space: Namespace, prefix: str
    ) -> tuple[Component[PredicateSpec] | None, bool, bool]:
        """Return ``predicate`` and ``negate`` of a transform, and whether they can be."""
        own = declarations(spec.properties) if spec.properties is not None else []
        own_names = {name for declaration in own for name in declaration.names}
        given = {
            name: space.settings[name]
            for name in ("predicate", "negate")
            if name in space.settings and name not in own_names
        }
        for name in given:
            space.claim(name)
        before = len(self._findings.problems)
        if given and not isinstance(spec, RecordTransformSpec):
            for setting in given.values():
                what = f"predicates look at records, and {spec.name} works on changes, before that"
                space.complain(setting, what)
            return None, False, False
        negate = "negate" in given and self._truth(given["negate"], space)
        if "predicate" not in given:
            if "negate" in given:
                space.complain(given["negate"], f"needs {prefix}predicate, which it turns round")
            return None, False, len(self._findings.problems) == before
        label = space.text("predicate")
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
        text = self._findings.text(setting).lower()
        if text not in BOOLEANS:
            space.complain(setting, "is no truth value", allowed="true or false")
        return BOOLEANS.get(text, False)

    def _order(self, found: list[TransformUse | None]) -> None:
        """Refuse a transform of changes after a transform of records."""
        of_records: str | None = None
        for prefix, use in zip(self._raw.transforms, found, strict=True):
            if use is None:
                continue
            if isinstance(use.spec, RecordTransformSpec):
                of_records = of_records or use.label
            elif of_records is not None:
                what = (
                    f"{use.spec.name} works on changes, before there are records, and comes after "
                    f"{of_records}, which works on records"
                )
                allowed = "an order with transforms of changes first"
                self._findings.add_problem(f"{prefix}type", what, allowed=allowed)


def _not_by_factory(_properties: object, _context: object) -> NoReturn:
    raise AssertionError("the engine puts the sinks of a profile together by itself")


FAN_OUT = SinkSpec(name="sinks", summary="Several sinks of one pipeline.", factory=_not_by_factory)
"""Represents in `Profile.sink` all of a profile's branches."""


def sink_branches(
    raw: RawProfile,
    findings: ValidationResult,
    survey: Callable[[RawProfile], ValidationResult],
    *,
    alone: bool,
) -> list[SinkBranchProfile | None]:
    """Return the profile of each of ``[[sinks]]``; None for one with problems.

    ``survey`` resolves a profile of one sink. ``alone``: there is no [sink] table as well.
    """
    found = [_sink_branch(given, raw, findings, survey) for given in raw.branches]
    if found and not alone:
        what = "is beside [[sinks]]: which of them are meant?"
        findings.add_problem("sink", what, allowed="[sink] or [[sinks]]")
    sound = [branch for branch in found if branch is not None]
    names = [branch.name for branch in sound]
    paths = [path for branch in sound for path in _paths(branch)]
    for given, what, allowed in (
        (names, "are called", "name = NAME, another for each"),
        (paths, "write to", "another path for each"),
    ):
        for each in sorted({each for each in given if given.count(each) > 1}):
            findings.add_problem("sinks", f"two of them {what} {each}", allowed=allowed)
    return found


def _sink_branch(
    given: RawSinkBranch,
    raw: RawProfile,
    findings: ValidationResult,
    survey: Callable[[RawProfile], ValidationResult],
) -> SinkBranchProfile | None:
    properties = Namespace(given.sink, findings, given.prefix).model(
        f"sink {given.prefix}", SinkBranchProperties
    )
    own = {name for each in declarations(SinkBranchProperties) for name in each.names}
    sink = {name: setting for name, setting in given.sink.items() if name not in own}
    form = dict(given.format)
    types = {name: kind for name, kind in raw.types.items() if name != "sink"}
    for section, settings in (("sink", sink), ("format", form)):
        kind = settings.pop("type", None)
        if kind is not None:
            types[section] = kind
    # The profile with only this sink; its own format wins.
    only = RawProfile(
        origin=raw.origin,
        folder=raw.folder,
        debezium=raw.debezium,
        settings={**raw.settings, **form},
        types=types,
        sink=sink,
        sink_prefix=given.prefix,
        transforms=given.transforms,
        predicates=raw.predicates,
        written=raw.written,
    )
    surveyed = survey(only)
    profile = surveyed.profile
    findings.problems += surveyed.problems
    findings.warnings += surveyed.warnings
    findings.explained += [
        each for each in surveyed.explained if each.name.startswith(given.prefix)
    ]
    if profile is None or properties is None:
        return None
    return SinkBranchProfile(
        name=properties.name or profile.sink.spec.name,
        sink=profile.sink,
        format=profile.format,
        transforms=profile.transforms,
        properties=properties,
    )


def _paths(branch: SinkBranchProfile) -> list[str]:
    """Return X of each ``--sink NAME:X`` that is a file or folder.

    It belongs to one sink only.
    """
    spec, properties = branch.sink.spec, branch.sink.properties
    if properties is None:
        return []
    return [
        str(value).rstrip("/")
        for each in declarations(type(properties))
        if each.path and each.name == spec.shorthand
        if (value := getattr(properties, each.field)) not in (None, "", *each.path_words)
    ]
