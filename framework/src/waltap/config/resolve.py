"""Resolve a profile to components, and find all mistakes in one pass.

The components are chosen first (connector, decoder, snapshot mode, format, naming, offset store,
sink, transforms), then each model gets the settings that it declares. An undeclared setting is a
mistake, unless it is a property of Debezium's without effect here.
"""

import hashlib
import logging
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from waltap.base.placeholder import SecretMissing
from waltap.base.plugin_errors import SpecMissing
from waltap.base.property import Properties, declarations
from waltap.changes.capture.properties import CaptureProperties
from waltap.config.components import (
    DEFAULT_FORMAT,
    FAN_OUT,
    ComponentTables,
    FormatResolver,
    TransformResolver,
    sink_branches,
)
from waltap.config.connect_worker import (
    ASKING,
    exactly_once,
    header_format,
    sanitizing,
    take_worker_settings,
)
from waltap.config.debezium import OLD_NAMES, KnownProperty, format_instead, present
from waltap.config.layers import SINK_PREFIX, GivenProperty, RawProfile
from waltap.config.name_patterns import in_database
from waltap.config.namespace import ARGUMENTS, Namespace, ValidationResult, as_text
from waltap.config.pipeline_properties import EngineProperties
from waltap.config.profile import Component, Profile, SelectionProperties, SinkBranchProfile
from waltap.errors import PluginError, PropertyProblem
from waltap.ports import specs

logger = logging.getLogger(__name__)

S = TypeVar("S", bound=specs.Spec)

DEFAULT_OFFSET_STORE = "file"
NATIVE = {
    "connector.class": "[source] type",
    "value.converter": "[format] type",
    f"{SINK_PREFIX}type": "[sink] type",
}
"""Property of a Debezium file → its name in a waltap profile."""

SHARING: tuple[type[specs.Spec], ...] = (
    specs.ConnectorSpec, specs.DecoderSpec, specs.SnapshotterSpec, specs.TopicNamingSpec,
    specs.FormatSpec, specs.OffsetStoreSpec, specs.SignalChannelSpec, specs.NotificationChannelSpec,
)  # fmt: skip
"""Kinds whose components share one namespace."""

SEPARATE = frozenset({specs.TransformSpec, specs.PredicateSpec, specs.ColumnConverterSpec})
"""Kinds whose components have a namespace each."""

OF_RUNS: Mapping[type[specs.Spec], str | None] = {
    specs.SinkSpec: "null",
    specs.FormatSpec: DEFAULT_FORMAT,
    specs.SignalChannelSpec: None,
    specs.NotificationChannelSpec: None,
}
"""Kinds that only a run needs → the substitute for a missing plugin's, so that `waltap status` works."""

SOURCE_CHANNEL, SINK_CHANNEL = "source", "sink"
OWN_CHANNELS = {
    (specs.SignalChannelSpec, SOURCE_CHANNEL),
    (specs.NotificationChannelSpec, SINK_CHANNEL),
}
"""Channels of the engine itself: both are in the stream of changes."""
JAVA_CHANNELS = {"jmx", "in-process"}
"""Channels within Debezium's Java process: here they are accepted and have no effect."""


def resolve(
    raw: RawProfile,
    host: specs.SpecRegistry,
    *,
    sink: str | None = None,
    overrides: Mapping[str, str] | None = None,
    at_rest: bool = False,
) -> Profile:
    """Return the profile that ``raw`` describes; warnings are logged.

    ``sink`` is ``NAME`` or ``NAME:VALUE`` and replaces the profile's sink; ``overrides`` are further
    properties (``sink.NAME`` for the sink's). ``at_rest`` is for commands that run nothing: transforms
    are left out, and components that only a run needs (`OF_RUNS`) may be missing.
    Raises: ConfigurationError with every problem; PluginError if two plugins claim a name that the
    profile needs.
    """
    found = _ProfileResolver(raw, host, sink, overrides or {}, at_rest=at_rest).survey()
    if found.profile is None:
        raise found.error()
    for warning in found.warnings:
        logger.warning("%s", warning)
    return found.profile


def survey(
    raw: RawProfile,
    host: specs.SpecRegistry,
    *,
    sink: str | None = None,
    overrides: Mapping[str, str] | None = None,
) -> ValidationResult:
    """Return a profile's properties and problems."""
    return _ProfileResolver(raw, host, sink, overrides or {}).survey()


class _ProfileResolver:
    """One resolution: chooses the components, fills their models, raises at the end."""

    def __init__(
        self,
        raw: RawProfile,
        host: specs.SpecRegistry,
        sink: str | None,
        overrides: Mapping[str, str],
        *,
        at_rest: bool = False,
    ) -> None:
        self._raw, self._host, self._sink_argument = raw, host, sink
        self._at_rest, self._done_without = at_rest, False
        self._findings = ValidationResult(
            origin=raw.origin,
            debezium=raw.debezium,
            folder=raw.folder,
            problems=list(raw.problems),
            ignored=dict(raw.ignored),
        )
        self._types = dict(raw.types)
        self._excuses: dict[str, None] = {}
        prefix, native = (SINK_PREFIX, "[sink] ") if raw.debezium else ("sink.", "")
        self._sink_prefix = raw.sink_prefix or prefix
        self._tables = ComponentTables(
            raw=raw,
            findings=self._findings,
            find=self._find,
            make=self._component,
            models=self._models,
        )
        self._sink = Namespace(raw.sink, self._findings, self._sink_prefix, native)
        self._missing: list[tuple[type[specs.Spec], bool]] = []
        self._flat = Namespace(raw.settings, self._findings)
        for name, value in overrides.items():
            self._override(name, value)
        self._flat.settings = self._renamed(self._flat.settings)
        self._findings.sanitize = sanitizing(self._flat)

    def survey(self) -> ValidationResult:
        """Return the findings, and the profile if it has no problem."""
        flat, findings = self._flat, self._findings
        chosen = flat.model("pipeline", SelectionProperties)
        # A wrong choice is recorded already; continue with defaults to find the other problems too.
        choice = chosen or SelectionProperties()
        connector = self._connector(choice)
        decoder = self._find(
            specs.DecoderSpec, self._choice(connector, "plugin.name", choice.decoder), "plugin.name"
        )
        mode = self._choice(connector, "snapshot.mode", choice.snapshot_mode)
        if mode.strip().casefold() == "custom":
            mode = choice.snapshot_mode_custom_name or mode
        snapshotter = self._find(specs.SnapshotterSpec, mode, "snapshot.mode")
        naming = self._find(specs.TopicNamingSpec, choice.topic_naming, "topic.naming.strategy")
        store = self._offset_store(choice.offset_store)
        branches = self._branches()
        sink = FAN_OUT if branches else self._sink_spec()
        if branches:
            findings.chosen["sink"] = ", ".join(each.name if each else "?" for each in branches)
        if sink is not None and self._raw.debezium and not branches:
            take_worker_settings(sink, self._flat, self._sink)
            exactly_once(sink, self._flat, self._sink)
        formats = FormatResolver(self._tables, flat, header_format(self._raw, sink))
        form = formats.chosen(choice, self._types.get("format"))
        name = findings.name = self._name(choice)
        if not self._raw.debezium:
            flat.settings.setdefault("topic.prefix", GivenProperty("topic.prefix", name, "name"))
        self._defaults_of(connector)
        capture = flat.model("capture", CaptureProperties)
        engine = flat.model("engine", EngineProperties)
        parts = {
            "connector": self._component("connector", connector, flat),
            "decoder": self._component("decoder", decoder, flat),
            "snapshotter": self._component("snapshot mode", snapshotter, flat),
            **self._deputies(choice),
            "format": form,
            "topic_naming": self._naming(naming, capture),
            "offset_store": self._component("offset store", store, flat),
            "sink": self._component("sink", sink, self._sink),
            "dead_letters": None if self._at_rest else self._tables.dead_letter_sink(),
            "labels": self._labels(),
        }
        signals = self._channels(
            specs.SignalChannelSpec,
            engine.signal_channels if engine else (),
            "signal.enabled.channels",
        )
        notifications = self._channels(
            specs.NotificationChannelSpec,
            engine.notification_channels if engine else (),
            "notification.enabled.channels",
        )
        uses = () if self._at_rest else TransformResolver(self._tables).chosen()
        of_columns = () if self._at_rest else self._tables.converters()
        all_known = not self._at_rest and len(uses) == len(self._raw.transforms)
        formats.refuse_others(uses, all_known=all_known)
        self._topic_of_notifications(engine, capture)
        if self._host.implements("choose_password"):
            flat.claim("database.connection.factory.class")  # the plugin replaces it
        self._leftovers(sink is not None and not branches)
        self._finish()
        if findings.problems:
            return findings
        profile = Profile(
            name=name,
            capture=capture,  # type: ignore[arg-type] # no problem, so there is one
            engine=engine,  # type: ignore[arg-type]
            transforms=uses,
            converters=of_columns,
            branches=tuple(branch for branch in branches if branch is not None),
            signal_channels=signals,
            notification_channels=notifications,
            debezium=self._raw.debezium,
            folder=self._raw.folder,
            **parts,  # type: ignore[arg-type]
        )
        findings.profile = in_database(profile)
        return findings

    def _finish(self) -> None:
        """Hide secrets from now on, and keep each problem and warning once."""
        findings = self._findings
        findings.hide()
        findings.problems += [PropertyProblem("plugins", excuse) for excuse in self._excuses]
        findings.problems = list({str(each): each for each in findings.problems}.values())
        findings.warnings = list(dict.fromkeys(findings.warnings))

    def _labels(self) -> dict[str, str]:
        found: dict[str, str] = {}
        for name, text in self._raw.labels.items():
            given = GivenProperty(f"labels.{name}", text, self._raw.origin)
            try:
                found[name] = str(self._findings.filled(given))
            except SecretMissing as cause:
                self._findings.add_problem(given.name, str(cause), value=text)
        return found

    def _deputies(self, choice: SelectionProperties) -> dict[str, object]:
        """Return the modes that override parts of the snapshot mode.

        They are chosen by ``snapshot.query.mode`` and ``snapshot.locking.mode``.
        """
        found: dict[str, object] = {}
        for part, property_name, name in (
            ("snapshot_query", "snapshot.query.mode", choice.snapshot_query_mode_custom_name),
            ("snapshot_lock", "snapshot.locking.mode", choice.snapshot_locking_mode_custom_name),
        ):
            own = f"{property_name}.custom.name"
            if self._flat.text(property_name).casefold() != "custom":
                continue
            if name is None:
                allowed = (
                    f"a snapshot mode: {', '.join(sorted(self._names(specs.SnapshotterSpec)))}"
                )
                what = f"is missing: {property_name} is custom"
                self._findings.add_problem(own, what, allowed=allowed)
                continue
            spec = self._find(specs.SnapshotterSpec, name, own)
            found[part] = self._component("snapshot mode", spec, self._flat)
        return found

    def _leftovers(self, sink: bool) -> None:
        """Report unknown names; names of a missing component's kind count as known."""
        if self._done_without:
            return
        missing = [(kind, meant) for kind, meant in self._missing if kind not in SEPARATE]
        for kind, _ in missing:
            space = self._sink if kind is specs.SinkSpec else self._flat
            space.tolerate(self._models(kind))
        likely = not all(meant for kind, meant in missing if kind is not specs.SinkSpec)
        self._flat.leftovers(
            likely=likely, other_component=self._other_component, beside=self._sink
        )
        if sink or self._missing:
            self._sink.leftovers(likely=not sink)

    def _other_component(self, name: str) -> KnownProperty | None:
        """Return a property, by name, of an unused component."""
        for kind in SHARING:
            for spec in self._host.specs(kind):
                if spec.properties is None:
                    continue
                for declaration in declarations(spec.properties):
                    family = declaration.family
                    if name in declaration.names or (family and family.fullmatch(name)):
                        default = "" if family else as_text(declaration.default)
                        return KnownProperty(
                            default, component=f"{specs.KIND_OF[kind].noun} {spec.name}"
                        )
        return None

    def _models(self, kind: type[specs.Spec]) -> list[type[Properties]]:
        return [s.properties for s in self._host.specs(kind) if s.properties is not None]

    # --- settings ------------------------------------------------------------------------------

    def _override(self, name: str, value: str) -> None:
        setting = GivenProperty(name, value, "--set")
        short = name.removeprefix("waltap.") if name.startswith(SINK_PREFIX) else name
        section, dot, rest = short.partition(".")
        if dot and rest == "type" and section in {"sink", "format", "offsets", "source"}:
            self._types[section] = setting
        elif section == "sink" and dot:
            self._sink.settings[rest] = setting
        else:
            self._flat.settings[name] = setting

    def _renamed(self, given: Mapping[str, GivenProperty]) -> dict[str, GivenProperty]:
        """Replace old names and values of Debezium by the present ones."""
        renamed: dict[str, GivenProperty] = {}
        # Arguments come last: they replace what the file has, also under another name.
        for name, setting in sorted(given.items(), key=lambda item: item[1].origin in ARGUMENTS):
            new = OLD_NAMES.get(name, name)
            if new != name:
                self._findings.warnings.append(f"{name} is an old name: write {new}")
                other = given.get(new, setting)
                alike = (other.origin in ARGUMENTS) == (setting.origin in ARGUMENTS)
                if alike and present(new, other.value) != present(new, setting.value):
                    what = f"is the old name of {new}, which is given too, with another value"
                    self._flat.complain(setting, what)
                    continue
            value = present(new, setting.value)
            if value is not setting.value:
                text = f"{new}={setting.value} is an old value: write {new}={value}"
                self._findings.warnings.append(text)
            renamed[new] = replace(setting, value=value)
        return renamed

    # --- choosing components -------------------------------------------------------------------

    def _find(self, kind: type[S], name: str, property_name: str, **about: str) -> S | None:
        role = kind.__name__.removesuffix("Spec").lower()
        try:
            given = GivenProperty(self._written(property_name), name, self._raw.origin)
            found = self._host.find(kind, str(self._findings.filled(given)))
        except SecretMissing as cause:
            self._findings.add_problem(given.name, str(cause), value=name)
            self._missing.append((kind, True))
            self._findings.chosen.setdefault(role, "?")
            return None
        except SpecMissing as missing:
            if self._at_rest and kind in OF_RUNS:
                return self._stand_in(kind)
            self._findings.add_problem(
                self._written(property_name),
                missing.what,
                nearest=missing.nearest,
                native=NATIVE.get(property_name),
                **{"allowed": format_instead(name) or missing.known, **about},
            )
            self._excuses.update(dict.fromkeys(missing.excuses))
            self._missing.append((kind, missing.nearest is not None))
            self._findings.chosen.setdefault(role, "?")
            return None
        except PluginError as clash:
            self._findings.add_problem(property_name, clash.problem, allowed=clash.advice())
            self._missing.append((kind, False))
            return None
        self._findings.chosen.setdefault(role, found.name)
        return found

    def _written(self, property_name: str) -> str:
        """Return the property's name in the user's file."""
        section = property_name.removesuffix(".type").removeprefix("waltap.")
        setting = self._flat.settings.get(property_name) or self._types.get(section)
        return setting.name if setting is not None and setting.full_name else property_name

    def _stand_in(self, kind: type[S]) -> S | None:
        """Return a placeholder for a missing component and its settings."""
        self._done_without = True
        if kind is specs.SinkSpec:
            self._sink.settings.clear()
        name = OF_RUNS[kind]
        return None if name is None else self._host.find(kind, name)

    def _offset_store(self, named: str | None) -> specs.OffsetStoreSpec | None:
        setting = self._types.get("offsets")
        if named is not None and setting is None:
            return self._find(specs.OffsetStoreSpec, named, "waltap.offset.store")
        if named is not None and setting is not None and named != self._findings.text(setting):
            what = f"contradicts type = {setting.value} in [offsets]"
            self._findings.add_problem("waltap.offset.store", what, value=named)
        name = str(setting.value) if setting else DEFAULT_OFFSET_STORE
        return self._find(specs.OffsetStoreSpec, name, "offsets.type")

    def _connector(self, choice: SelectionProperties) -> specs.ConnectorSpec | None:
        setting = self._types.get("source")
        name = str(setting.value) if setting else choice.connector
        filled = self._findings.text(setting) if setting else (name or "").strip()
        property_name = "connector.class" if self._raw.debezium else "source.type"
        if name is None:
            known = ", ".join(sorted(self._names(specs.ConnectorSpec))) or None
            what = "is missing: which database is this?"
            self._findings.add_problem(property_name, what, allowed=known)
            self._missing.append((specs.ConnectorSpec, True))
            return None
        for spec in self._host.specs(specs.ConnectorSpec):
            if filled.casefold() in map(str.casefold, spec.classes):
                self._findings.chosen["connector"] = spec.name
                return spec
        return self._find(specs.ConnectorSpec, name, property_name)

    def _choice(self, connector: specs.ConnectorSpec | None, name: str, otherwise: str) -> str:
        """Return the profile's value of ``name``, else the connector's default, else ours."""
        if connector is None or connector.properties is None or name in self._flat.settings:
            return otherwise
        own = {d.name: d for d in declarations(connector.properties)}.get(name)
        return otherwise if own is None else str(self._findings.default(own))

    def _defaults_of(self, connector: specs.ConnectorSpec | None) -> None:
        """Apply a connector's own defaults of the pipeline's properties."""
        if connector is None or connector.properties is None:
            return
        own = {d.name: d for d in declarations(connector.properties)}
        for model in (CaptureProperties, EngineProperties):
            for declaration in declarations(model):
                name = declaration.name
                if name in own and name not in self._flat.settings:
                    value = self._findings.default(own[name])
                    self._flat.settings[name] = GivenProperty(
                        name, value, f"{connector.name}'s default"
                    )

    def _sink_spec(self) -> specs.SinkSpec | None:
        given = self._types.get("sink")
        property_name = f"{self._sink_prefix}type"
        if self._sink_argument is None:
            if given is not None:
                return self._find(specs.SinkSpec, str(given.value), property_name)
            if self._at_rest:
                return self._stand_in(specs.SinkSpec)
            what = "is missing: where should the changes go?"
            known = ", ".join(sorted(self._names(specs.SinkSpec)))
            allowed = f"[sink] type = NAME, or --sink NAME:VALUE; names: {known}"
            if self._raw.debezium:
                allowed = f"{SINK_PREFIX}type=NAME, or --sink NAME:VALUE; names: {known}"
            native = NATIVE.get(property_name)
            self._findings.add_problem(property_name, what, allowed=allowed, native=native)
            self._missing.append((specs.SinkSpec, False))
            return None
        name, colon, value = self._sink_argument.partition(":")
        spec = self._find(specs.SinkSpec, name, "--sink")
        if spec is None:
            return None
        names = {each.casefold() for each in (spec.name, *spec.aliases)}
        # Without a type in the profile, its properties are for the named sink.
        if given is not None and self._findings.text(given).casefold() not in names:
            mine = {n: s for n, s in self._sink.settings.items() if s.origin == "--set"}
            self._sink.settings = mine
        if colon:
            self._sink.settings[spec.shorthand] = GivenProperty(spec.shorthand, value, "--sink")
        return spec

    def _branches(self) -> list[SinkBranchProfile | None]:
        """Return several sinks; none if an argument names one."""
        if self._sink_argument is not None or self._at_rest:
            return []
        raw = replace(self._raw, settings=self._flat.settings, types=self._types)

        def survey_branch(each: RawProfile) -> ValidationResult:
            own = _ProfileResolver(each, self._host, None, {})
            found = own.survey()
            # A branch takes the worker's settings for its sink, and reports what it refuses.
            for name in self._flat.settings.keys() - own._flat.settings.keys() | ASKING.keys():
                self._flat.claim(name)
            return found

        alone = "sink" not in self._types and not self._sink.settings
        return sink_branches(raw, self._findings, survey_branch, alone=alone)

    def _component(self, role: str, spec: S | None, space: Namespace) -> Component[S] | None:
        if spec is None:
            return None
        if spec.properties is None:
            return Component(spec)
        forced = spec.forced_options if isinstance(spec, specs.DecoderSpec) else {}
        space.force(f"{role} {spec.name}", forced)
        return Component(spec, space.model(f"{role} {spec.name}", spec.properties, forced))

    def _channels(
        self, kind: type[S], names: tuple[str, ...], property_name: str
    ) -> tuple[Component[S], ...]:
        """Return the listed channels that are plugins."""
        found: dict[str, Component[S] | None] = {}
        own = {channel for each, channel in OWN_CHANNELS if each is kind}
        known = sorted({*own, *self._names(kind)})
        javas = JAVA_CHANNELS - set(map(str.casefold, known))
        for name in names:
            if name.casefold() in own | javas:
                continue
            allowed = f"a comma list of: {', '.join(known)}"
            spec = self._find(kind, name, property_name, value=name, allowed=allowed)
            if spec is not None:
                found[spec.name] = self._component(f"channel {spec.name}", spec, self._flat)
        return tuple(component for component in found.values() if component is not None)

    def _topic_of_notifications(
        self, engine: EngineProperties | None, capture: CaptureProperties | None
    ) -> None:
        if engine is None or capture is None or capture.notification_topic:
            return
        if SINK_CHANNEL in map(str.casefold, engine.notification_channels):
            self._findings.add_problem(
                "notification.sink.topic.name",
                "is missing: notification.enabled.channels names sink",
                allowed="the topic that notifications are to have",
            )

    def _names(self, kind: type[specs.Spec]) -> list[str]:
        return [spec.name for spec in self._host.specs(kind)]

    def _naming(
        self, spec: specs.TopicNamingSpec | None, capture: CaptureProperties | None
    ) -> Component[specs.TopicNamingSpec] | None:
        """Return the topic naming; one without properties gets the capture properties."""
        component = self._component("topic naming", spec, self._flat)
        if spec is None or component is None or capture is None:
            return component
        if spec.properties is None:
            component = Component(spec, capture)
        if component.properties is not None:
            try:
                spec.factory(component.properties)
            except ValueError as cause:
                self._findings.add_problem("topic.naming.strategy", str(cause), value=spec.name)
        return component

    def _name(self, choice: SelectionProperties) -> str:
        """Return the pipeline's name, which differs for Debezium files with other slots."""
        name = choice.name or self._raw.stem
        if self._raw.debezium and not choice.name:
            given = [self._flat.settings.get(key) for key in ("topic.prefix", "slot.name")]
            found = [setting for setting in given if setting]
            with suppress(SecretMissing):  # the property's model reports it
                name = "-".join(str(self._findings.filled(each)) for each in found) or name
        return pipeline_name(name)


def pipeline_name(name: str) -> str:
    """Return ``name`` as a folder's name; a digest keeps replaced names apart."""
    folder = re.sub(r"[^A-Za-z0-9._-]+", "_", name).strip("._")[:80] or "pipeline"
    if folder == name:
        return name
    return f"{folder}-{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
