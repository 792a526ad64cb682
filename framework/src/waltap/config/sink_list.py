"""Several sinks of one profile: each is resolved as the only sink of the same profile."""

from collections.abc import Callable
from typing import NoReturn, Protocol

from waltap.base.property import declarations
from waltap.config.layers import GivenProperty, RawOutlet, RawProfile
from waltap.config.namespace import ExplainedProperty, Namespace, ValidationResult
from waltap.config.profile import OutletProfile, Profile
from waltap.config.sink_branch_properties import OutletProperties
from waltap.errors import PropertyProblem
from waltap.ports.specs import SinkSpec

__all__ = ["FAN_OUT", "SinkList"]


def _not_by_factory(_properties: object, _context: object) -> NoReturn:
    raise AssertionError("the engine puts the sinks of a profile together by itself")


FAN_OUT = SinkSpec(name="sinks", summary="Several sinks of one pipeline.", factory=_not_by_factory)
"""Stands in `Profile.sink` for all of a profile's outlets."""


class SurveyedSink(Protocol):
    """What a survey of one outlet's profile tells."""

    @property
    def explained(self) -> tuple[ExplainedProperty, ...]: ...

    @property
    def warnings(self) -> tuple[str, ...]: ...

    @property
    def problems(self) -> tuple[PropertyProblem, ...]: ...


class SinkList:
    """The ``[[sinks]]`` of ``raw``, whose settings and types are those of the whole profile. ``survey``
    resolves a profile of one sink."""

    def __init__(
        self,
        raw: RawProfile,
        findings: ValidationResult,
        survey: Callable[[RawProfile], tuple[SurveyedSink, Profile | None]],
    ) -> None:
        self._raw, self._findings, self._survey = raw, findings, survey

    def profiles(self, *, alone: bool) -> list[OutletProfile | None]:
        """Return each; None for one with problems. ``alone``: there is no [sink] beside them."""
        found = [self._one(given) for given in self._raw.outlets]
        if found and not alone:
            what = "stands beside [[sinks]]: which of them are meant?"
            self._complain("sink", what, "[sink] or [[sinks]]")
        names = [outlet.name for outlet in found if outlet is not None]
        for name in sorted({name for name in names if names.count(name) > 1}):
            self._complain(
                "sinks", f"two of them are called {name}", "name = NAME, another for each"
            )
        places = [place for outlet in found if outlet is not None for place in _paths(outlet)]
        for place in sorted({place for place in places if places.count(place) > 1}):
            self._complain("sinks", f"two of them write to {place}", "another path for each")
        return found

    def _complain(self, place: str, what: str, allowed: str) -> None:
        self._findings.problems.append(PropertyProblem(place, what, allowed=allowed))

    def _one(self, given: RawOutlet) -> OutletProfile | None:
        properties = Namespace(given.sink, self._findings, given.place).model(
            f"sink {given.place}", OutletProperties
        )
        own = {name for each in declarations(OutletProperties) for name in each.names}
        sink = {name: setting for name, setting in given.sink.items() if name not in own}
        form = dict(given.format)
        types = {name: kind for name, kind in self._raw.types.items() if name != "sink"}
        for section, settings in (("sink", sink), ("format", form)):
            kind = settings.pop("type", None)
            if kind is not None:
                types[section] = kind
        survey, profile = self._survey(self._only(given, sink, form, types))
        self._findings.problems += survey.problems
        self._findings.warnings += survey.warnings
        self._findings.explained += [
            each for each in survey.explained if each.name.startswith(given.place)
        ]
        if profile is None or properties is None:
            return None
        return OutletProfile(
            name=properties.name or profile.sink.spec.name,
            sink=profile.sink,
            format=profile.format,
            transforms=profile.transforms,
            properties=properties,
        )

    def _only(
        self,
        given: RawOutlet,
        sink: dict[str, GivenProperty],
        form: dict[str, GivenProperty],
        types: dict[str, GivenProperty],
    ) -> RawProfile:
        """Return the profile that has this sink alone; what it says of its format wins."""
        raw = self._raw
        return RawProfile(
            origin=raw.origin,
            folder=raw.folder,
            debezium=raw.debezium,
            settings={**raw.settings, **form},
            types=types,
            sink=sink,
            sink_place=given.place,
            transforms=given.transforms,
            transform_names=given.transform_names,
            predicates=raw.predicates,
            written=raw.written,
        )


def _paths(outlet: OutletProfile) -> list[str]:
    """Return the X of ``--sink NAME:X`` where that is a file or folder: it belongs to one sink alone."""
    spec, properties = outlet.sink.spec, outlet.sink.properties
    if properties is None:
        return []
    return [
        str(value).rstrip("/")
        for each in declarations(type(properties))
        if each.path and each.name == spec.shorthand
        if (value := getattr(properties, each.field)) not in (None, "", *each.path_words)
    ]
