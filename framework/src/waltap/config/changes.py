"""Compare two resolved profiles, for a reload."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from waltap.base.property import Properties, PropertyDeclaration, declarations
from waltap.config.profile import Component, Profile, TransformUse

__all__ = ["PropertyChange", "changes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PropertyChange:
    """A property with another value."""

    # The name in a profile of waltap, with a prefix outside the common namespace.
    name: str
    # None for a setting that is no property, such as a type.
    declaration: PropertyDeclaration | None = None

    @property
    def reloadable(self) -> bool:
        """Return whether a running pipeline accepts the change."""
        return self.declaration is not None and self.declaration.reloadable


def changes(before: Profile, after: Profile) -> list[PropertyChange]:
    """Return the changed properties, in the order of ``after``.

    Values are compared, including secrets, and not shown.
    """
    old, new = dict(_settings(before)), dict(_settings(after))
    found = []
    for name in [*new, *(name for name in old if name not in new)]:
        value, declaration = new.get(name) or (None, old[name][1])
        if name not in old or old[name][0] != value:
            found.append(PropertyChange(name=name, declaration=declaration))
    return found


def _settings(profile: Profile) -> Iterator[tuple[str, tuple[Any, PropertyDeclaration | None]]]:
    """Yield each property by name, with its value and declaration."""
    yield "name", (profile.name, None)
    yield "labels", (profile.labels, None)
    for model in (profile.engine, profile.capture):
        yield from _values("", model)
    for place, component in _components(profile):
        yield f"{place}type", (component.spec.name, None)
        yield from _values("" if place in COMMON else place, component.properties)
    for outlet in profile.outlets:
        yield from _values(f"sinks.{outlet.name}.", outlet.properties)


COMMON = {
    "source.", "decoder.", "snapshot.", "snapshot.query.", "snapshot.lock.", "topic.naming.", "format.",
    "offsets.",
}  # fmt: skip
"""Components whose properties share one namespace."""


def _components(profile: Profile) -> Iterator[tuple[str, Component[Any]]]:
    """Yield each component with the prefix of its properties."""
    yield "source.", profile.connector
    yield "decoder.", profile.decoder
    yield "snapshot.", profile.snapshotter
    for place, deputy in (
        ("snapshot.query.", profile.snapshot_query),
        ("snapshot.lock.", profile.snapshot_lock),
        ("dead_letters.", profile.dead_letters),
    ):
        if deputy is not None:
            yield place, deputy
    yield "topic.naming.", profile.topic_naming
    yield "format.", profile.format
    yield "offsets.", profile.offset_store
    if profile.outlets:
        for outlet in profile.outlets:
            place = f"sinks.{outlet.name}."
            yield place, outlet.sink
            yield f"{place}format.", outlet.format
            yield from _transforms(place, outlet.transforms)
    else:
        yield "sink.", profile.sink
    yield from _transforms("", profile.transforms)
    for converter in profile.converters:
        yield f"converters.{converter.label}.", converter
    for kind, channels in (
        ("signal", profile.signal_channels),
        ("notification", profile.notification_channels),
    ):
        for channel in channels:
            yield f"{kind}.{channel.spec.name}.", channel


def _transforms(
    place: str, transforms: tuple[TransformUse, ...]
) -> Iterator[tuple[str, Component[Any]]]:
    for number, use in enumerate(transforms, 1):
        own = f"{place}transforms.{use.label or number}."
        yield own, use
        if use.predicate is not None:
            yield f"{own}predicate.{'not.' if use.negate else ''}", use.predicate


def _values(
    place: str, model: Properties | None
) -> Iterator[tuple[str, tuple[Any, PropertyDeclaration | None]]]:
    if model is None:
        return
    for declaration in declarations(type(model)):
        value = getattr(model, declaration.field)
        if declaration.family is None:
            yield f"{place}{declaration.name}", (value, declaration)
        else:
            for name, each in value.items():
                yield f"{place}{name}", (each, declaration)
