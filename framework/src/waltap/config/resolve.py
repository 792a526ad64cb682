"""From what a profile says to what each component gets; every mistake is found in one go.

The components are chosen first (connector, decoder, snapshot mode, format, naming, offset store,
sink, transforms), then each model gets the settings it declares, and only those. What nobody
declares is a mistake, unless it is a property of Debezium's that would change nothing here.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

from pydantic import ValidationError

from waltap.config.debezium_names import CONVERTERS, KNOWN_NAMES, OLD_NAMES, OLD_VALUES, known
from waltap.config.layers import SINK_PREFIX, RawProfile, Setting
from waltap.config.placeholder import SecretMissing, fill, holds_placeholder
from waltap.config.profile import Component, Profile
from waltap.config.property import HIDDEN, Declaration, Properties, declarations
from waltap.config.selection import SelectionProperties
from waltap.errors import ConfigurationError, Problem
from waltap.host import SpecMissing, nearest
from waltap.pipeline.properties import EngineProperties
from waltap.specs import (
    ConnectorSpec,
    DecoderSpec,
    FormatSpec,
    OffsetStoreSpec,
    SinkSpec,
    SnapshotterSpec,
    Spec,
    TopicNamingSpec,
    TransformSpec,
)

if TYPE_CHECKING:
    from waltap.host import Host

__all__ = ["Explained", "Resolution", "examine", "resolve"]

S = TypeVar("S", bound=Spec)
P = TypeVar("P", bound=Properties)

DEFAULT_FORMAT = "json"
DEFAULT_OFFSET_STORE = "file"
SECRET_NAME = re.compile(
    r"pass|pwd|secret|token|credential|jaas|auth\.user|private|api.?key", re.IGNORECASE
)
USERINFO = re.compile(r"(://[^:/@\s]*):[^@/\s]+@")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Explained:
    """One property of a resolved profile, safe to show: secrets are hidden."""

    name: str
    value: str
    origin: str
    component: str
    declaration: Declaration


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """A profile, how each of its properties came about, and what its owner should know.

    ``ignored``: properties that were accepted and change nothing. ``warnings``: sentences.
    """

    profile: Profile
    explained: tuple[Explained, ...]
    ignored: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def resolve(
    raw: RawProfile,
    host: "Host",
    *,
    sink: str | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Profile:
    """Return the profile that ``raw`` describes; deprecated names are logged.

    ``sink`` is ``NAME`` or ``NAME:VALUE`` and takes the place of the profile's sink; ``overrides``
    are further properties (``sink.NAME`` for the sink's). Raises: ConfigurationError with every
    problem there is; PluginError when two plugins claim something the profile needs.
    """
    resolution = examine(raw, host, sink=sink, overrides=overrides)
    for warning in resolution.warnings:
        logger.warning("%s", warning)
    return resolution.profile


def examine(
    raw: RawProfile,
    host: "Host",
    *,
    sink: str | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Resolution:
    """Return the profile and how it came about. Raises: as `resolve`."""
    return _Resolver(raw, host, sink, overrides or {}).resolution()


@dataclass(slots=True)
class _Namespace:
    """Settings that several models may claim; what nobody claimed is left at the end."""

    settings: dict[str, Setting]
    prefix: str = ""
    claimed: set[str] = field(default_factory=set)
    declared: dict[str, Declaration] = field(default_factory=dict)


class _Resolver:
    """One resolution. Problems and warnings collect here; nothing is raised before the end."""

    def __init__(
        self, raw: RawProfile, host: "Host", sink: str | None, overrides: Mapping[str, str]
    ) -> None:
        self._raw, self._host = raw, host
        self._problems: list[Problem] = list(raw.problems)
        self._warnings: list[str] = []
        self._explained: list[Explained] = []
        self._secrets: set[str] = set()
        self._flat = _Namespace(dict(raw.settings))
        self._sink = _Namespace(dict(raw.sink), "sink.")
        self._types = dict(raw.types)
        for name, value in overrides.items():
            self._override(name, value)
        self._sink_argument = sink
        self._flat.settings = dict(self._renamed(self._flat.settings.values()))

    def resolution(self) -> Resolution:
        """Do it. Raises: ConfigurationError, PluginError."""
        chosen = self._model("pipeline", SelectionProperties, self._flat)
        connector = self._connector(chosen)
        decoder_name = self._connector_default(
            connector, "plugin.name", chosen.decoder if chosen else None
        )
        mode = self._connector_default(
            connector, "snapshot.mode", chosen.snapshot_mode if chosen else None
        )
        if mode == "custom" and chosen is not None and chosen.snapshot_mode_custom_name:
            mode = chosen.snapshot_mode_custom_name
        decoder = self._find(DecoderSpec, decoder_name, "plugin.name")
        snapshotter = self._find(SnapshotterSpec, mode, "snapshot.mode")
        naming = self._find(
            TopicNamingSpec, chosen.topic_naming if chosen else None, "topic.naming.strategy"
        )
        form = self._format(chosen)
        store = self._typed(OffsetStoreSpec, "offsets", DEFAULT_OFFSET_STORE)
        sink = self._sink_spec()

        from waltap.render.capture import CaptureProperties

        capture = self._model("capture", CaptureProperties, self._flat)
        engine = self._model("engine", EngineProperties, self._flat)
        parts = {
            "connector": self._component("connector", connector, self._flat),
            "decoder": self._component("decoder", decoder, self._flat),
            "snapshotter": self._component("snapshot mode", snapshotter, self._flat),
            "format": self._component("format", form, self._flat),
            "topic_naming": self._component("topic naming", naming, self._flat),
            "offset_store": self._component("offset store", store, self._flat),
            "sink": self._component("sink", sink, self._sink),
        }
        transforms = [
            self._transform(number, t) for number, t in enumerate(self._raw.transforms, 1)
        ]
        ignored: list[str] = []
        if connector is not None and decoder is not None and form is not None:
            ignored = self._unclaimed(self._flat)
        if sink is not None:
            self._unclaimed(self._sink)
        name = self._name(chosen)
        if self._problems:
            raise ConfigurationError(_unique(self._problems), origin=self._raw.origin)
        profile = Profile(
            name=name,
            capture=capture,  # type: ignore[arg-type]
            engine=engine,  # type: ignore[arg-type]
            transforms=tuple(component for component in transforms if component is not None),
            labels=dict(self._raw.labels),
            debezium=self._raw.debezium,
            **parts,  # type: ignore[arg-type]
        )
        return Resolution(
            profile=profile,
            explained=tuple(self._explained),
            ignored=tuple(ignored),
            warnings=tuple(self._warnings),
        )

    # --- what was given ------------------------------------------------------------------------

    def _override(self, name: str, value: str) -> None:
        setting = Setting(name, value, "--set")
        short = name.removeprefix("waltap.") if name.startswith(SINK_PREFIX) else name
        if short in {"sink.type", "format.type", "offsets.type", "source.type"}:
            self._types[short.removesuffix(".type")] = setting
        elif short.startswith("sink."):
            self._sink.settings[short.removeprefix("sink.")] = setting
        else:
            self._flat.settings[name] = setting

    def _renamed(self, settings: Iterable[Setting]) -> Iterator[tuple[str, Setting]]:
        """Give old names and values of Debezium's their present form."""
        given = {setting.name: setting for setting in settings}
        for name, setting in given.items():
            new = OLD_NAMES.get(name, name)
            value = setting.value
            present = OLD_VALUES.get((new, str(value).strip().lower()))
            if new != name:
                if new in given and given[new].value != value:
                    what = f"is the old name of {new}, which is given too, with another value"
                    self._problems.append(self._problem(setting, what))
                self._warnings.append(f"{name} is an old name: write {new}")
            if present is not None:
                self._warnings.append(f"{new}={value} is an old value: write {new}={present}")
                value = present
            if new == name or new not in given:
                yield new, Setting(name, value, setting.origin)

    # --- choosing components -------------------------------------------------------------------

    def _find(self, kind: type[S], name: str | None, place: str) -> S | None:
        if name is None:
            return None
        try:
            return self._host.find(kind, name)
        except SpecMissing as missing:
            allowed = f"{missing.problem.partition('; ')[2]}".removeprefix("known: ")
            what = missing.problem.partition("; ")[0]
            self._problems.append(Problem(place, what, allowed=allowed, nearest=missing.nearest))
            return None

    def _typed(self, kind: type[S], section: str, default: str) -> S | None:
        setting = self._types.get(section)
        return self._find(kind, str(setting.value) if setting else default, f"{section}.type")

    def _connector(self, chosen: SelectionProperties | None) -> ConnectorSpec | None:
        setting = self._types.get("source")
        name = str(setting.value) if setting else chosen.connector if chosen else None
        place = "source.type" if setting else "connector.class"
        if name is None:
            what = "is missing: which database is this?"
            place = place if self._raw.debezium else "source.type"
            allowed = ", ".join(sorted(self._host.connectors)) or None
            self._problems.append(Problem(place, what, allowed=allowed))
            return None
        for spec in self._host.connectors.values():
            if name in spec.classes:
                return spec
        return self._find(ConnectorSpec, name, place)

    def _connector_default(
        self, connector: ConnectorSpec | None, name: str, otherwise: str | None
    ) -> str | None:
        """Return what the profile says of ``name``, else the connector's default, else ours."""
        if connector is None or connector.properties is None or name in self._flat.settings:
            return otherwise
        for declaration in declarations(connector.properties):
            if declaration.name == name:
                return str(self._default(declaration))
        return otherwise

    def _format(self, chosen: SelectionProperties | None) -> FormatSpec | None:
        value = chosen.value_converter if chosen else None
        key = chosen.key_converter if chosen else None
        if "format" in self._types or value is None:
            return self._typed(FormatSpec, "format", DEFAULT_FORMAT)
        if key is not None and CONVERTERS.get(key, key) != CONVERTERS.get(value, value):
            what = "names another format than value.converter; keys and values share one"
            self._problems.append(Problem("key.converter", what, value=key, allowed=value))
        return self._find(FormatSpec, CONVERTERS.get(value, value), "value.converter")

    def _sink_spec(self) -> SinkSpec | None:
        given = self._types.get("sink")
        if self._sink_argument is None:
            if given is None:
                what = "is missing: where should the changes go?"
                allowed = f"[sink] type or --sink NAME:VALUE; {', '.join(sorted(self._host.sinks))}"
                self._problems.append(Problem("sink.type", what, allowed=allowed))
                return None
            return self._find(SinkSpec, str(given.value), "sink.type")
        name, colon, value = self._sink_argument.partition(":")
        spec = self._find(SinkSpec, name, "--sink")
        if spec is None:
            return None
        names = {spec.name, *spec.aliases}
        if given is None or str(given.value) not in names:
            self._sink.settings = {
                key: setting
                for key, setting in self._sink.settings.items()
                if setting.origin == "--set"
            }
        if colon:
            self._sink.settings[spec.shorthand] = Setting(spec.shorthand, value, "--sink")
        return spec

    def _transform(
        self, number: int, settings: dict[str, Setting]
    ) -> Component[TransformSpec] | None:
        space = _Namespace(dict(settings), f"transforms[{number}].")
        kind = space.settings.pop("type", None)
        if kind is None:
            if not self._raw.debezium:
                self._problems.append(Problem(f"{space.prefix}type", "is missing"))
            return None
        spec = self._find(TransformSpec, str(kind.value), f"{space.prefix}type")
        component = self._component(f"transform {number}", spec, space)
        if spec is not None:
            self._unclaimed(space)
        return component

    def _name(self, chosen: SelectionProperties | None) -> str:
        if chosen is not None and chosen.name is not None:
            return chosen.name
        name = self._raw.stem
        if self._raw.debezium:
            marks = (self._flat.settings.get(key) for key in ("topic.prefix", "slot.name"))
            name = "-".join(str(mark.value) for mark in marks if mark is not None) or name
        return re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._-")[:100] or "pipeline"

    # --- filling models ------------------------------------------------------------------------

    def _component(self, role: str, spec: S | None, space: _Namespace) -> Component[S] | None:
        if spec is None:
            return None
        forced = getattr(spec, "forced_options", {})
        if spec.properties is None:
            return Component(spec)
        return Component(spec, self._model(f"{role} {spec.name}", spec.properties, space, forced))

    def _model(
        self,
        component: str,
        model: type[P],
        space: _Namespace,
        forced: Mapping[str, object] | None = None,
    ) -> P | None:
        """Return ``model`` filled from ``space``, None when that fails (with problems)."""
        values: dict[str, object] = {}
        origins: dict[str, Setting] = {}
        by_name = {declaration.name: declaration for declaration in declarations(model)}
        failed = False
        for name, declaration in by_name.items():
            space.declared.setdefault(name, declaration)
            if declaration.family is not None:
                values[name] = self._family(declaration, space)
                continue
            setting = self._given(declaration, space)
            if forced and name in forced:
                values[name] = forced[name]
            elif setting is not None:
                try:
                    values[name] = _fitting(self._filled(setting), declaration)
                    origins[name] = setting
                except SecretMissing as cause:
                    failed = True
                    self._problems.append(self._problem(setting, str(cause), space, name))
            elif not self._raw.debezium and declaration.profile_default is not None:
                values[name] = declaration.profile_default
        if failed:
            return None
        try:
            filled = model.model_validate(values)
        except ValidationError as cause:
            self._problems.extend(self._translated(cause, by_name, origins, component, space))
            return None
        self._explain(component, filled, by_name, origins, space)
        return filled

    def _given(self, declaration: Declaration, space: _Namespace) -> Setting | None:
        """Return the setting of a property, under whichever of its names it was given."""
        found = [space.settings[name] for name in declaration.names if name in space.settings]
        for setting in found:
            if setting.name in declaration.deprecated:
                instead = declaration.deprecated[setting.name]
                self._warnings.append(f"{setting.name} is an old name: write {instead}")
        space.claimed.update(name for name in declaration.names if name in space.settings)
        if len(found) > 1 and any(other.value != found[0].value for other in found[1:]):
            what = f"is given twice, also as {found[1].name}, with another value"
            self._problems.append(self._problem(found[0], what, space, declaration.name))
        return found[0] if found else None

    def _family(self, declaration: Declaration, space: _Namespace) -> dict[str, str]:
        pattern = declaration.family
        assert pattern is not None
        values: dict[str, str] = {}
        for name, setting in space.settings.items():
            if pattern.fullmatch(name):
                space.claimed.add(name)
                try:
                    values[name] = _as_text(self._filled(setting))
                except SecretMissing as cause:
                    self._problems.append(self._problem(setting, str(cause), space, name))
        return values

    def _filled(self, setting: Setting) -> object:
        """Return the value with its secrets filled in. Raises: SecretMissing."""
        if isinstance(setting.value, str) and holds_placeholder(setting.value):
            text, secrets = fill(setting.value, self._raw.folder)
            self._secrets.update(secret for secret in secrets if secret)
            return text
        return setting.value

    def _default(self, declaration: Declaration) -> object:
        if not self._raw.debezium and declaration.profile_default is not None:
            return declaration.profile_default
        return declaration.default

    # --- what is wrong -------------------------------------------------------------------------

    def _translated(
        self,
        cause: ValidationError,
        by_name: Mapping[str, Declaration],
        origins: Mapping[str, Setting],
        component: str,
        space: _Namespace,
    ) -> Iterator[Problem]:
        for error in cause.errors(include_url=False, include_context=False, include_input=False):
            name = str(error["loc"][0]) if error["loc"] else ""
            declaration = by_name.get(name)
            message = self._masked(error["msg"].removeprefix("Value error, "))
            if declaration is None:
                yield Problem(component, message)
            elif error["type"] == "missing":
                yield Problem(
                    f"{space.prefix}{name}",
                    f"is required: {declaration.summary}",
                    allowed=declaration.allowed or None,
                )
            else:
                setting = origins.get(name)
                guess = None
                if setting is not None and declaration.choices:
                    guess = nearest(str(setting.value), declaration.choices)
                    message = "is not one of its values"
                yield Problem(
                    f"{space.prefix}{name}",
                    message[:1].lower() + message[1:],
                    value=self._shown(setting, declaration) if setting is not None else None,
                    allowed=declaration.allowed or None,
                    nearest=guess,
                )

    def _unclaimed(self, space: _Namespace) -> list[str]:
        """Report the settings that no model declares; return those that change nothing."""
        ignored: list[str] = []
        for name, setting in space.settings.items():
            if name in space.claimed:
                continue
            entry = known(name) if not space.prefix else None
            if entry is not None and entry.accepts(setting.value):
                ignored.append(name)
            elif entry is not None:
                what = "is a property of Debezium's that waltap does not support yet"
                allowed = (
                    f"leave it out, or its default: {entry.default}" if entry.default else None
                )
                self._problems.append(self._problem(setting, what, space, name, allowed=allowed))
            else:
                guess = nearest(name, {*space.declared, *(() if space.prefix else KNOWN_NAMES)})
                what = "is not known"
                self._problems.append(self._problem(setting, what, space, name, guess=guess))
        return ignored

    def _problem(
        self,
        setting: Setting,
        what: str,
        space: _Namespace | None = None,
        name: str | None = None,
        *,
        allowed: str | None = None,
        guess: str | None = None,
    ) -> Problem:
        space = space or self._flat
        declaration = space.declared.get(guess or name or setting.name)
        return Problem(
            f"{space.prefix}{setting.name}",
            what,
            value=self._shown(setting, declaration),
            allowed=allowed,
            nearest=f"{space.prefix}{guess}" if guess else None,
        )

    # --- what may be shown ---------------------------------------------------------------------

    def _shown(self, setting: Setting, declaration: Declaration | None) -> str:
        """Return the value as given, with its placeholders, or what stands for a secret."""
        if holds_placeholder(setting.value):
            return str(setting.value)
        secret = declaration is not None and declaration.secret
        if secret or SECRET_NAME.search(setting.name):
            return HIDDEN
        return USERINFO.sub(rf"\1:{HIDDEN}@", _as_text(setting.value))

    def _masked(self, text: str) -> str:
        for secret in sorted(self._secrets, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text

    def _explain(
        self,
        component: str,
        model: Properties,
        by_name: Mapping[str, Declaration],
        origins: Mapping[str, Setting],
        space: _Namespace,
    ) -> None:
        for name, declaration in by_name.items():
            if name in origins:
                value, origin = self._shown(origins[name], declaration), origins[name].origin
            elif declaration.family is not None:
                for member in getattr(model, declaration.field):
                    setting = space.settings[member]
                    shown = self._shown(setting, declaration)
                    self._explained.append(
                        Explained(
                            name=f"{space.prefix}{member}",
                            value=shown,
                            origin=setting.origin,
                            component=component,
                            declaration=declaration,
                        )
                    )
                continue
            else:
                present = getattr(model, declaration.field)
                value = HIDDEN if declaration.secret and present else _as_text(present)
                origin = "default"
            self._explained.append(
                Explained(
                    name=f"{space.prefix}{name}",
                    value=value,
                    origin=origin,
                    component=component,
                    declaration=declaration,
                )
            )


def _fitting(value: object, declaration: Declaration) -> object:
    """Return ``value`` in the form the declared type takes.

    Debezium's choices know no case; TOML may say 5432 where a text is wanted.
    """
    if isinstance(value, str) and declaration.choices:
        word = value.strip()
        return next((c for c in declaration.choices if c.casefold() == word.casefold()), word)
    annotation: Any = declaration.info.annotation
    if annotation is str or str in get_args(annotation):
        return _as_text(value) if isinstance(value, bool | int | float) else value
    if isinstance(value, str) and annotation is not Path:
        return value.strip()
    return value


def _as_text(value: object) -> str:
    """Return a value as a ``.properties`` file would have it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(_as_text(item) for item in value)
    return str(value)


def _unique(problems: list[Problem]) -> list[Problem]:
    """Drop a problem that two components reported of one property they share."""
    return list({str(problem): problem for problem in problems}.values())
