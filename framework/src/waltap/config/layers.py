"""Read settings from a profile's file and from arguments, unparsed.

There are five kinds of file. A waltap profile is TOML. A Debezium ``.properties`` file is a
connector's, with or without the Connect worker's settings. Debezium Server has
``application.properties``. A Debezium connector's JSON is flat or ``{"name": …, "config": {…}}``.
Strimzi's ``KafkaConnector`` is YAML, or kubectl's JSON. Placeholders for secrets stay in the values
here; `waltap.config.resolve` fills them in.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from waltap.base.environment import variable
from waltap.base.java_properties import parse_properties
from waltap.base.placeholder import SecretMissing, contents, fill
from waltap.base.text import nearest
from waltap.errors import ConfigurationError, PropertyProblem

SECTIONS = ("source", "engine", "format", "offsets")
"""Sections whose properties share one namespace; [sink] and [[transforms]] have their own."""

LISTS = frozenset({"transforms", "converters", "sinks"})
"""Sections with several tables."""

SINK_PREFIX = "waltap.sink."
SINK_NAMES = "waltap.sinks"
"""In a Debezium file: the names of several sinks, and the prefix of the properties of each."""

POST = "post.processors"
"""In a Debezium file: the names of transforms that come before the others."""

STRIMZI = "KafkaConnector"
"""Kind of the resource that Strimzi keeps a connector in."""

KAFKA = "kafka"
"""The sink that a Connect worker has: its ``bootstrap.servers`` says that the records go there."""


@dataclass(frozen=True, slots=True)
class GivenProperty:
    """One given property: its name, value, and location.

    ``full_name``: the name is complete, also for a property of a sink or transform.
    """

    name: str
    value: object
    origin: str
    full_name: bool = False


@dataclass(slots=True, kw_only=True)
class RawSinkBranch:
    """One of several sinks, as given.

    ``prefix`` is the prefix of its properties; ``transforms`` as in `RawProfile`.
    """

    prefix: str
    sink: dict[str, GivenProperty] = field(default_factory=dict)
    format: dict[str, GivenProperty] = field(default_factory=dict)
    transforms: dict[str, dict[str, GivenProperty]] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class RawProfile:
    """A profile before any component has looked at it.

    ``settings`` is the flat namespace of everything but sinks and transforms. ``types`` holds the
    ``type`` of each section by section name. ``transforms`` and ``converters`` of columns are in their
    order, by the prefix that their users write before their properties; ``sink_prefix`` is the sink's,
    where that is not as usual. ``predicates`` of transforms are listed by the names that those use;
    ``branches`` are several sinks, ``dead_letters`` is the one that gets copies of dead letters.
    ``problems`` are those found while reading, ``ignored`` names that have no effect, each with the
    reason. ``written``: the prefix of ``transforms.`` and ``predicates.`` in the file. ``stopped`` is the
    setting that says that this is not to run, with its value. Relative paths start at ``folder``
    (absolute): the file's folder, for tables in memory the current one.
    """

    origin: str
    folder: Path = field(default_factory=Path.cwd)
    debezium: bool = False
    settings: dict[str, GivenProperty] = field(default_factory=dict)
    types: dict[str, GivenProperty] = field(default_factory=dict)
    sink: dict[str, GivenProperty] = field(default_factory=dict)
    sink_prefix: str = ""
    transforms: dict[str, dict[str, GivenProperty]] = field(default_factory=dict)
    predicates: dict[str, dict[str, GivenProperty]] = field(default_factory=dict)
    converters: dict[str, dict[str, GivenProperty]] = field(default_factory=dict)
    branches: list[RawSinkBranch] = field(default_factory=list)
    dead_letters: dict[str, GivenProperty] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    problems: list[PropertyProblem] = field(default_factory=list)
    ignored: dict[str, str] = field(default_factory=dict)
    written: str = ""
    stopped: tuple[str, str] | None = None

    def require_running(self) -> None:
        """Raises: ConfigurationError where the file says that this is not to run."""
        if self.stopped is not None:
            name, value = self.stopped
            what = f"keeps this connector from running; to run it here, take {name} out"
            raise ConfigurationError.of(name, what, value=value, origin=self.origin)

    @property
    def stem(self) -> str:
        return Path(self.origin).stem


def load(path: Path) -> RawProfile:
    """Read a profile's file. Raises: ConfigurationError."""
    origin = str(path)
    try:
        data = contents(path)
    except (OSError, ValueError) as cause:  # ValueError: NUL, or what is no text, in the name
        shown = origin.encode("utf-8", "backslashreplace").decode()
        why = cause.strerror if isinstance(cause, OSError) else "this is not the name of a file"
        missing = isinstance(cause, FileNotFoundError)
        allowed = "a profile's file; `waltap init FILE` writes one" if missing else None
        raise ConfigurationError.of(
            shown, f"cannot be read: {why}", allowed=allowed, origin=shown
        ) from cause
    suffix = path.suffix.lower()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        if suffix != ".properties":
            raise ConfigurationError.of(origin, "is not UTF-8 text", origin=origin) from cause
        text = data.decode("latin-1")  # what Java reads a .properties file as
    try:
        raw = READERS.get(suffix, _json if text.lstrip()[:1] == "{" else _toml)(text, origin)
    except (ValueError, RecursionError) as cause:
        why = "it is nested too deep" if isinstance(cause, RecursionError) else str(cause)
        allowed = _advice(why) if suffix in READERS else f"another suffix: {', '.join(READERS)}"
        raise ConfigurationError.of(
            origin, f"cannot be parsed: {why}", allowed=allowed, origin=origin
        ) from cause
    raw.folder = path.parent.absolute()  # links stay: secrets are often mounted beside them
    return raw


def read_tables(tables: Mapping[str, Any], origin: str = "profile") -> RawProfile:
    """Return the profile in nested tables or a dict."""
    raw = RawProfile(origin=origin)
    for section, content in tables.items():
        where = f"{origin} [{section}]"
        if section == "name":
            raw.settings["name"] = GivenProperty("name", content, origin)
        elif section in LISTS and isinstance(content, list):
            for number, table in enumerate(content, start=1):
                table_origin, named = f"{origin} [[{section}]] #{number}", f"{section}[{number}]."
                if not isinstance(table, Mapping):
                    what = f"must be [[{section}]] tables"
                    raw.problems.append(PropertyProblem(section, what))
                elif section == "sinks":
                    raw.branches.append(_raw_branch(table, table_origin, number, raw.problems))
                else:
                    listed = raw.transforms if section == "transforms" else raw.converters
                    listed[named] = _flat(table, table_origin, raw.problems)
        elif section == "predicates" and isinstance(content, Mapping):
            for label, table in content.items():
                if isinstance(table, Mapping):
                    raw.predicates[label] = _flat(table, f"{where[:-1]}.{label}]", raw.problems)
                else:
                    what = "must be a [predicates.NAME] table"
                    raw.problems.append(PropertyProblem(f"predicates.{label}", what))
        elif section == "dead_letters" and isinstance(content, Mapping):
            raw.dead_letters = _flat(content, where, raw.problems)
        elif section == "labels" and isinstance(content, Mapping):
            flat = _flat(content, where, raw.problems)
            raw.labels = {name: _text(setting.value) for name, setting in flat.items()}
        elif section in {*SECTIONS, "sink"} and isinstance(content, Mapping):
            flat = raw.sink if section == "sink" else raw.settings
            _flat(content, where, raw.problems, flat)
            if "type" in flat:
                raw.types[section] = flat.pop("type")
        else:
            what = "is not a section of a profile"
            if "." in section and not isinstance(content, Mapping | list):
                what = (
                    "is in no section: write it below [source], or below [sink] if it is a sink's"
                )
            raw.problems.append(
                PropertyProblem(
                    section,
                    what,
                    allowed="name, [source], [sink], [[sinks]], [engine], [format], [offsets], "
                    "[[transforms]], [predicates.NAME], [[converters]], [dead_letters], [labels]",
                )
            )
    return raw


def read_debezium(values: Mapping[str, object], origin: str = "connector") -> RawProfile:
    """Return the profile in flat properties of Debezium.

    They are a connector's or Debezium Server's. Raises: ValueError for one that is not flat.
    """
    nested = [name for name, value in values.items() if isinstance(value, dict | list)]
    if nested:
        raise ValueError(f"properties of a connector are flat; {nested[0]!r} is not")
    given = {name: _text(value) for name, value in values.items() if value is not None}
    if any(name.removeprefix(PRODUCTION).startswith((SOURCE, SINK, FORMAT)) for name in given):
        return _server(given, origin)
    settings = {name: GivenProperty(name, value, origin) for name, value in given.items()}
    raw = RawProfile(origin=origin, debezium=True, settings=settings)
    _take_lists(raw)
    servers = raw.settings.get("bootstrap.servers")
    if servers is not None and "sink" not in raw.types and not raw.branches:
        raw.types["sink"] = GivenProperty(servers.name, KAFKA, origin, full_name=True)
    return raw


def _raw_branch(
    table: Mapping[str, Any], origin: str, number: int, problems: list[PropertyProblem]
) -> RawSinkBranch:
    named = str(table.get("name", number))
    branch = RawSinkBranch(prefix=f"sinks[{named}].")
    rest = dict(table)
    form, transforms = rest.get("format"), rest.get("transforms")
    if isinstance(form, Mapping):
        branch.format = _flat(rest.pop("format"), origin, problems)
    elif isinstance(form, str):
        branch.format = {"type": GivenProperty("format", rest.pop("format"), origin)}
    if isinstance(transforms, list) and all(isinstance(each, Mapping) for each in transforms):
        for at, each in enumerate(rest.pop("transforms"), start=1):
            named = f"{branch.prefix}transforms[{at}]."
            branch.transforms[named] = _flat(each, f"{origin} transforms #{at}", problems)
    branch.sink = _flat(rest, origin, problems)
    return branch


def _toml(text: str, origin: str) -> RawProfile:
    return read_tables(tomllib.loads(text), origin)


def _properties(text: str, origin: str) -> RawProfile:
    return read_debezium(parse_properties(text), origin)


def _json(text: str, origin: str) -> RawProfile:
    document = json.loads(text, object_pairs_hook=_distinct)
    if not isinstance(document, dict):
        message = "a connector is a JSON object"
        raise ValueError(message)  # noqa: TRY004 - one of the ways a file cannot be parsed
    if document.get("kind") == STRIMZI:
        return _strimzi(document, origin)
    config = document.get("config")
    if isinstance(config, dict):
        name = document.get("name")
        document = {"name": name, **config} if name else config
    return read_debezium(document, origin)


def _distinct(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object. Raises: ValueError for a name with two values."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            message = f"{name} is given twice, with different values"
            raise ValueError(message)
    return found


def _yaml(text: str, origin: str) -> RawProfile:
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        message = (
            "YAML is read by PyYAML, which is not installed: pip install pyyaml; or, without it, "
            "kubectl get kafkaconnector NAME -o json > NAME.json"
        )
        raise ValueError(message) from None

    class Loader(yaml.SafeLoader):  # type: ignore[misc] # has no types
        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)  # without those that `<<` merges into it
            _distinct((str(key.value), value.value) for key, value in node.value)
            return node

    try:
        documents = [each for each in yaml.load_all(text, Loader) if each is not None]
    except yaml.YAMLError as cause:
        raise ValueError(" ".join(str(cause).split())) from cause
    found = [each for each in documents if isinstance(each, dict) and each.get("kind") == STRIMZI]
    if len(found) != 1:
        raise ValueError(f"of YAML one {STRIMZI} of Strimzi is read, and here are {len(found)}")
    return _strimzi(found[0], origin)


def _strimzi(document: Mapping[str, Any], origin: str) -> RawProfile:
    spec, metadata = document.get("spec"), document.get("metadata")
    config = spec.get("config") if isinstance(spec, dict) else None
    if not isinstance(spec, dict) or not isinstance(config, dict):
        message = f"a {STRIMZI} has a mapping spec.config"
        raise ValueError(message)  # noqa: TRY004 - one of the ways a file cannot be parsed
    own = {
        "name": metadata.get("name") if isinstance(metadata, dict) else None,
        "connector.class": spec.get("class"),
        "tasks.max": spec.get("tasksMax"),
    }
    given = {name: value for name, value in own.items() if value is not None}
    raw = read_debezium({**{str(name): value for name, value in config.items()}, **given}, origin)
    state = str(spec.get("state", "running"))
    if state != "running":
        raw.stopped = "spec.state", state
    elif spec.get("pause") is True:  # as it was before Strimzi 0.38
        raw.stopped = "spec.pause", "true"
    rest = [f"spec.{name}" for name in spec if name not in {"class", "tasksMax", "config"}]
    raw.ignored |= dict.fromkeys(rest, "it is for the connector in Kafka Connect")
    return raw


READERS = {
    ".properties": _properties, ".json": _json, ".toml": _toml, ".yaml": _yaml, ".yml": _yaml,
}  # fmt: skip
"""Suffix of a profile's file → its reader."""


def _flat(
    table: Mapping[str, Any],
    origin: str,
    problems: list[PropertyProblem],
    flat: dict[str, GivenProperty] | None = None,
    prefix: str = "",
) -> dict[str, GivenProperty]:
    """Join the keys of nested tables with dots, in ``flat``."""
    flat = {} if flat is None else flat
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            _flat(value, origin, problems, flat, f"{name}.")
        elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
            what = f"is a list of tables in {origin}: no property is one"
            problems.append(PropertyProblem(name, what))
        else:
            before = flat.get(name)
            if before is not None and before.value != value:
                what = f"is given twice, in {before.origin} and in {origin}"
                problems.append(PropertyProblem(name, what))
            flat[name] = GivenProperty(name, value, origin)
    return flat


def _take_lists(raw: RawProfile) -> None:
    """Move the sink and listed names out of the namespace."""
    raw.sink |= _cut_out(raw.settings, SINK_PREFIX)
    if "type" in raw.sink:
        raw.types["sink"] = raw.sink.pop("type")
    _take_transforms(raw)
    raw.converters |= _listed(raw, "converters", "")
    for prefix, own in _listed(raw, SINK_NAMES).items():
        alias = prefix.removeprefix(f"{SINK_NAMES}.").removesuffix(".")
        own.setdefault("name", GivenProperty(SINK_NAMES, alias, raw.origin))
        part = RawProfile(origin=raw.origin, settings=own)
        _take_transforms(part)
        raw.branches.append(
            RawSinkBranch(
                prefix=prefix,
                format=_cut_out(own, "format."),
                sink=own,
                transforms={f"{prefix}{name}": each for name, each in part.transforms.items()},
            )
        )


def _take_transforms(raw: RawProfile) -> None:
    """Move transforms, post processors and predicates out of the flat names."""
    _name_post_processors(raw)
    for prefix, settings in (_listed(raw, POST) | _listed(raw, "transforms")).items():
        raw.transforms[f"{raw.written}{prefix}"] = settings
    for prefix, settings in _listed(raw, "predicates").items():
        raw.predicates[prefix.removeprefix("predicates.").removesuffix(".")] = settings


def _name_post_processors(raw: RawProfile) -> None:
    """Rename ``reselect.type`` to ``post.processors.reselect.type``.

    Debezium used the short form before 3.5.
    """
    listed = raw.settings.get(POST)
    for alias in _names(listed, raw):
        old, new = f"{alias}.", f"{POST}.{alias}."
        if f"{old}type" in raw.settings and f"{new}type" not in raw.settings:
            for name in [name for name in raw.settings if name.startswith(old)]:
                raw.settings[new + name.removeprefix(old)] = raw.settings.pop(name)


def _listed(
    raw: RawProfile, kind: str, folder: str | None = None
) -> dict[str, dict[str, GivenProperty]]:
    """Move listed names: ``transforms=a`` and ``transforms.a.*``.

    ``folder`` precedes the names instead of ``kind``.
    """
    found: dict[str, dict[str, GivenProperty]] = {}
    for alias in _names(raw.settings.pop(kind, None), raw):
        prefix = f"{kind}.{alias}." if folder is None else f"{folder}{alias}."
        if prefix in found:
            raw.problems.append(PropertyProblem(kind, f"names {alias} twice"))
        else:
            found[prefix] = _cut_out(raw.settings, prefix)
    return found


def _names(setting: GivenProperty | None, raw: RawProfile) -> list[str]:
    """Return the names in a list, which other settings begin with."""
    if setting is None:
        return []
    try:
        text = str(fill(setting.value, raw.folder)[0])
    except SecretMissing as cause:
        raw.problems.append(PropertyProblem(setting.name, str(cause), value=str(setting.value)))
        return []
    return [name.strip() for name in text.split(",") if name.strip()]


def _cut_out(settings: dict[str, GivenProperty], prefix: str) -> dict[str, GivenProperty]:
    """Remove and return the settings behind ``prefix``."""
    names = [name for name in settings if name.startswith(prefix)]
    return {name.removeprefix(prefix): settings.pop(name) for name in names}


def _text(value: object) -> str:
    """Return a JSON scalar as Kafka Connect's text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _advice(reason: str) -> str | None:
    """Return how to write a property whose name continues another one's."""
    if "overwrite" in reason or "already" in reason or "Cannot declare" in reason:
        return (
            "each name once; names of which one continues the other must be quoted: "
            '"snapshot.mode.custom.name" = …'
        )
    return None


# Debezium Server's ``application.properties`` under a connector's names.
#
# | Debezium Server | here |
# |---|---|
# | ``debezium.source.NAME`` | NAME |
# | ``debezium.sink.type`` | the sink |
# | ``debezium.sink.TYPE.NAME`` | NAME of the sink |
# | ``debezium.format.key``, ``value``, ``header`` | ``key.converter`` and its like |
# | ``debezium.format.key.NAME`` and its like, ``debezium.format.NAME`` | of that part, or of all |
# | ``debezium.transforms``, ``debezium.predicates``, and what begins so | without ``debezium.`` |
# | ``quarkus.NAME``, and what belongs to a Quarkus profile (``%dev.NAME``) | nothing, with the reason |
# | ``waltap.NAME`` | as it is |
#
# Source: Debezium 3.6, "Debezium Server"; the Quarkus guide of configuration, for expressions.

ROOT = "debezium."
SOURCE, SINK, FORMAT = "debezium.source.", "debezium.sink.", "debezium.format."
SINK_TYPE = "debezium.sink.type"
GROUPS = ("source", "sink", "format", "transforms", "predicates")
CHAINS = ("debezium.transforms", "debezium.predicates")
RECORD_PARTS = ("key", "value", "header")
PRODUCTION = "%prod."
EXPRESSION = re.compile(r"\$\{([A-Za-z_%][^${}:]*)(?::((?:[^{}]|\$\{[^{}]*\})*))?\}")
PROVIDERS = frozenset({"env", "file", "secrets", "directory"})
DEPTH_MAX = 8
"""How deep expressions may name properties that hold expressions."""

FORMATS = {
    "json": "org.apache.kafka.connect.json.JsonConverter",
    "jsonbytearray": "org.apache.kafka.connect.json.JsonConverter",
    "avro": "io.confluent.connect.avro.AvroConverter",
    "protobuf": "io.confluent.connect.protobuf.ProtobufConverter",
    "cloudevents": "io.debezium.converters.CloudEventsConverter",
    "simplestring": "org.apache.kafka.connect.storage.StringConverter",
    "binary": "io.debezium.converters.BinaryDataConverter",
    "clientprovided": "io.debezium.converters.BinaryDataConverter",
}
"""Names of formats → the converter that Debezium's engine takes for them."""
JSON_OPTIONS = frozenset({"schemas.enable", "decimal.format", "replace.null.with.default"})

QUARKUS = "waltap has no Quarkus: WALTAP_LOG_LEVEL and WALTAP_LOG set the log; see `waltap status`"
OTHER_PROFILE = (
    "it belongs to another profile of Quarkus than prod, which Debezium Server runs with"
)
OF_SINK = {
    "kafka": {
        "wait.message.delivery.timeout.ms": "a position counts once the broker has reported every record "
        "before it; producer.delivery.timeout.ms bounds that",
    },
}
"""Settings of a sink of Debezium Server that its namesake here does not need → why."""
RENAMED = {"kafka": {"producer.bootstrap.servers": "bootstrap.servers"}}
"""Settings of a sink of Debezium Server → the name that its namesake here has for it."""


def _server(given: Mapping[str, str], origin: str) -> RawProfile:
    raw = RawProfile(origin=origin, debezium=True, written=ROOT)
    values = _of_production(given, raw)
    settings = {
        name: GivenProperty(name, _expanded(text, values), origin, full_name=True)
        for name, text in values.items()
    }
    for name, setting in settings.items():
        if name.startswith(SOURCE):
            raw.settings[name.removeprefix(SOURCE)] = setting
        elif name.startswith(CHAINS):
            raw.settings[name.removeprefix(ROOT)] = setting
        elif name.startswith("quarkus."):
            raw.ignored[name] = QUARKUS
        elif name.startswith("waltap."):
            raw.settings[name] = setting
        elif not name.startswith((SINK, FORMAT)):
            _refuse(raw, name, _meant(name))
    _take_formats(settings, raw)
    _take_server_sink(settings, raw)
    _take_lists(raw)
    return raw


def _refuse(raw: RawProfile, name: str, meant: str | None) -> None:
    what = "is not a property of Debezium Server"
    raw.problems.append(PropertyProblem(name, what, nearest=meant))


def _meant(name: str) -> str:
    """Return the name that was probably meant by an unknown one."""
    if not name.startswith(ROOT):
        return f"{SOURCE}{name}"
    part, _, rest = name.removeprefix(ROOT).partition(".")
    group = nearest(part, GROUPS)
    return f"{ROOT}{group}.{rest}".rstrip(".") if group else f"{SOURCE}{name.removeprefix(ROOT)}"


def _of_production(given: Mapping[str, str], raw: RawProfile) -> dict[str, str]:
    """Return the settings of the production profile, whose own ones win."""
    values = {name: value for name, value in given.items() if not name.startswith("%")}
    for name, value in given.items():
        if name.startswith(PRODUCTION):
            values[name.removeprefix(PRODUCTION)] = value
        elif name.startswith("%"):
            raw.ignored[name] = OTHER_PROFILE
    return values


def _take_formats(settings: Mapping[str, GivenProperty], raw: RawProfile) -> None:
    """Read ``debezium.format.*``; settings of one part win over common ones."""
    own: dict[str, GivenProperty] = {}
    common: dict[str, GivenProperty] = {}
    for name, setting in settings.items():
        if not name.startswith(FORMAT):
            continue
        rest = name.removeprefix(FORMAT)
        record_part, _, option = rest.partition(".")
        if record_part not in RECORD_PARTS:
            common[rest] = setting
        elif option:
            own[f"{record_part}.converter.{option}"] = setting
        else:
            kind = str(setting.value).strip()
            converter = FORMATS.get(kind.casefold(), kind)
            own[f"{record_part}.converter"] = replace(setting, value=converter)
    if (value_converter := own.get("value.converter")) is not None:
        # Debezium Server writes each part as JSON by default, keys too.
        own.setdefault("key.converter", replace(value_converter, value=FORMATS["json"]))
    # JSON's converter ignores the options of others.
    others = [
        part
        for part in RECORD_PARTS
        if (chosen := own.get(f"{part}.converter")) and chosen.value != FORMATS["json"]
    ]
    for option, setting in common.items():
        for part in RECORD_PARTS if option in JSON_OPTIONS else others or RECORD_PARTS:
            raw.settings[f"{part}.converter.{option}"] = setting
    raw.settings |= own


def _take_server_sink(settings: Mapping[str, GivenProperty], raw: RawProfile) -> None:
    kind = ""
    if (chosen := settings.get(SINK_TYPE)) is not None:
        kind = ",".join(_names(chosen, raw)).lower()  # names of sinks have no case
        if not kind:
            return  # the names of the others depend on it
        raw.types["sink"] = replace(chosen, value=kind)
    prefix, needless = f"{SINK}{kind}.", OF_SINK.get(kind, {})
    for name, setting in settings.items():
        if not name.startswith(SINK) or name == SINK_TYPE:
            continue
        own = name[len(prefix) :] if name.lower().startswith(prefix) else name
        if not kind or own == name:
            known = [SINK_TYPE] if not kind else [f"{prefix}{name.removeprefix(SINK)}", SINK_TYPE]
            other = name.removeprefix(SINK).partition(".")[0]
            if kind and other != kind and nearest(other, [kind]) is None:
                raw.ignored[name] = f"it is of the sink {other}, and debezium.sink.type is {kind}"
            else:
                _refuse(raw, name, nearest(name, known))
        elif own in needless:
            raw.ignored[name] = needless[own]
        else:
            raw.sink[RENAMED.get(kind, {}).get(own, own)] = setting


def _expanded(text: str, values: Mapping[str, str], depth: int = DEPTH_MAX) -> str:
    """Expand Quarkus's expressions: properties, variables, defaults.

    A variable becomes ``${env:NAME}``, so that no output shows its value.
    """

    def replaced(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name in PROVIDERS and default is not None:
            return match[0]
        if name in values and depth:
            return _expanded(values[name], values, depth - 1)
        for word in (name, re.sub(r"[^A-Za-z0-9]", "_", name).upper()):
            if variable(word) is not None:
                return f"${{env:{word}}}"
        return f"${{env:{name}}}" if default is None else _expanded(default, values, depth)

    return EXPRESSION.sub(replaced, text)
