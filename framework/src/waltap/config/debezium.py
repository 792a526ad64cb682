"""Debezium Server's ``application.properties`` under a connector's names. Sans-IO.

| Debezium Server | here |
|---|---|
| ``debezium.source.NAME`` | NAME |
| ``debezium.sink.type`` | the sink |
| ``debezium.sink.TYPE.NAME`` | NAME of the sink |
| ``debezium.format.key``, ``value``, ``header`` | ``key.converter`` and its like |
| ``debezium.format.key.NAME`` and its like, ``debezium.format.NAME`` | of that part, or of all |
| ``debezium.transforms``, ``debezium.predicates``, and what begins so | without ``debezium.`` |
| ``quarkus.NAME``, and what belongs to a Quarkus profile (``%dev.NAME``) | nothing, with the reason |
| ``waltap.NAME`` | as it is |

Source: Debezium 3.6, "Debezium Server"; the Quarkus guide of configuration, for expressions.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from waltap.base.text import nearest

# Know the properties of Debezium and Kafka Connect that no component of waltap declares.
#
# ``debezium_names.toml`` has their names, defaults and treatment.


@dataclass(frozen=True, slots=True)
class KnownProperty:
    """One known property."""

    # Debezium's default, "" without one.
    default: str = ""
    # Other values that change nothing.
    harmless: tuple[str, ...] = ()
    # The reason why it has no effect, or why other values are refused.
    why: str = ""
    # Any value is accepted and changes nothing.
    ignored: bool = False
    # The component of waltap that declares it, and that the profile does not choose.
    component: str = ""

    @property
    def harmless_values(self) -> tuple[str, ...]:
        return (self.default, *self.harmless) if self.default else self.harmless

    def accepts(self, value: object) -> bool:
        text = str(value).strip().casefold()
        return self.ignored or text in {"", *map(str.casefold, self.harmless_values)}

    @property
    def allowed(self) -> str | None:
        """Return the accepted values in words, None without any."""
        values = self.harmless_values
        if not values:
            return None
        return f"leave it out, or {'its default: ' if len(values) == 1 else ''}{', '.join(values)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DebeziumNames:
    """The content of ``debezium_names.toml``."""

    known: Mapping[str, KnownProperty]
    # Pattern of names → their treatment.
    families: tuple[tuple[re.Pattern[str], KnownProperty], ...]
    # A setting in a file of Debezium → its meaning in words.
    mapped: Mapping[str, str]


@cache
def debezium_names() -> DebeziumNames:
    """Read Debezium's names, in 10 ms: only for names no component declares."""
    text = files("waltap.config").joinpath("debezium_names.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    reasons = document["reasons"]

    def entry(table: Mapping[str, Any]) -> KnownProperty:
        why = table.get("why", "")
        return KnownProperty(
            default=table.get("default", ""),
            harmless=tuple(table.get("harmless", ())),
            why=reasons.get(why, why),
            ignored="names" in table or table.get("ignored", False),
        )

    ignored = {name: entry(group) for group in document["ignored"] for name in group["names"]}
    others = {name: entry(table) for name, table in document["default_only"].items()}
    families = ((re.compile(table["pattern"]), entry(table)) for table in document["families"])
    return DebeziumNames(
        known=ignored | others, families=tuple(families), mapped=document["mapped"]
    )


def known(name: str) -> KnownProperty | None:
    """Return the treatment of ``name``, None for an unknown name."""
    names = debezium_names()
    families = (entry for pattern, entry in names.families if pattern.fullmatch(name))
    return names.known.get(name) or next(families, None)


# Every profile is looked up here, so these names are not in the file.
OLD_NAMES = {
    "database.server.name": "topic.prefix",
    "schema.whitelist": "schema.include.list",
    "schema.blacklist": "schema.exclude.list",
    "table.whitelist": "table.include.list",
    "table.blacklist": "table.exclude.list",
    "column.whitelist": "column.include.list",
    "column.blacklist": "column.exclude.list",
    "slot.drop_on_stop": "slot.drop.on.stop",
    "truncate.handling.mode": "skipped.operations",
    "toasted.value.placeholder": "unavailable.value.placeholder",
    "sanitize.field.names": "field.name.adjustment.mode",
    "heartbeat.topics.prefix": "topic.heartbeat.prefix",
    "transaction.topic": "topic.transaction",
    "snapshot.custom.class": "snapshot.mode.custom.name",
    "flush.lsn.source": "lsn.flush.mode",
    "internal.slot.seek.to.known.offset.on.start": "offset.mismatch.strategy",
}
"""Names of older Debezium versions → the present name."""

OLD_VALUES = {
    ("event.processing.failure.handling.mode", "ignore"): "skip",
    ("skipped.operations", "include"): "none",
    ("skipped.operations", "skip"): "t",
    ("snapshot.mode", "never"): "no_data",
    ("snapshot.mode", "exported"): "initial",
    ("field.name.adjustment.mode", "true"): "avro",
    ("field.name.adjustment.mode", "false"): "none",
    ("lsn.flush.mode", "true"): "connector",
    ("lsn.flush.mode", "false"): "manual",
    ("offset.mismatch.strategy", "true"): "trust_offset",
    ("offset.mismatch.strategy", "false"): "no_validation",
}
"""(present name, old value) → the present value."""


def present(name: str, value: object) -> object:
    """Return the present value for an old value of Debezium's; others unchanged."""
    return OLD_VALUES.get((name, str(value).strip().lower()), value)


APICURIO = re.compile(r"io\.apicurio\..*(Avro|Json|Protobuf)Converter", re.IGNORECASE)
CONFLUENT = {"avro": "avro.Avro", "json": "json.JsonSchema", "protobuf": "protobuf.Protobuf"}


def format_instead(name: str) -> str | None:
    """Return a replacement for a converter's class, None without one."""
    found = APICURIO.fullmatch(name.strip())
    if found is None:
        return None
    return (
        f"io.confluent.connect.{CONFLUENT[found[1].lower()]}Converter, with "
        "schema.registry.url=http://HOST:PORT/apis/ccompat/v7 of the same registry; consumers then read "
        "Confluent's bytes"
    )


ROOT = "debezium."
SOURCE, SINK, FORMAT = "debezium.source.", "debezium.sink.", "debezium.format."
SINK_TYPE = "debezium.sink.type"
GROUPS = ("source", "sink", "format", "transforms", "predicates")
CHAINS = ("debezium.transforms", "debezium.predicates")
RECORD_PARTS = ("key", "value", "header")
PRODUCTION = "%prod."
EXPRESSION = re.compile(r"\$\{([A-Za-z_%][^${}:]*)(?::([^{}]*))?\}")
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


@dataclass(slots=True, kw_only=True)
class ServerFile:
    """The settings of such a file by waltap's names.

    Each is (name in the file, value). ``sink_type`` is None if the file names none. ``ignored``:
    name in the file → the reason why it has no effect. ``unknown``: name in the file → a similar
    known name, or None.
    """

    flat: dict[str, tuple[str, str]] = field(default_factory=dict)
    sink: dict[str, tuple[str, str]] = field(default_factory=dict)
    sink_type: tuple[str, str] | None = None
    ignored: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str | None] = field(default_factory=dict)


def is_server_file(values: Mapping[str, object]) -> bool:
    """Return whether these are properties of Debezium Server, not of a connector."""
    return any(name.removeprefix(PRODUCTION).startswith((SOURCE, SINK, FORMAT)) for name in values)


def server_file(
    given: Mapping[str, str], variable: Callable[[str], str | None] = lambda _name: None
) -> ServerFile:
    """Translate Debezium Server's properties; ``variable`` reads the environment."""
    made = ServerFile()
    values = _of_production(given, made)
    for name, text in values.items():
        value = _expanded(text, values, variable)
        if name.startswith(SOURCE):
            made.flat[name.removeprefix(SOURCE)] = name, value
        elif name.startswith(CHAINS):
            made.flat[name.removeprefix(ROOT)] = name, value
        elif name == SINK_TYPE:
            made.sink_type = name, value.strip()
        elif name.startswith("quarkus."):
            made.ignored[name] = QUARKUS
        elif name.startswith("waltap."):
            made.flat[name] = name, value
        elif not name.startswith((SINK, FORMAT)):
            made.unknown[name] = _meant(name)
    _take_formats(values, made, variable)
    _take_sink(values, made, variable)
    return made


def _meant(name: str) -> str:
    """Return the name that was probably meant by an unknown one."""
    if not name.startswith(ROOT):
        return f"{SOURCE}{name}"
    part, _, rest = name.removeprefix(ROOT).partition(".")
    group = nearest(part, GROUPS)
    return f"{ROOT}{group}.{rest}".rstrip(".") if group else f"{SOURCE}{name.removeprefix(ROOT)}"


def _of_production(given: Mapping[str, str], made: ServerFile) -> dict[str, str]:
    """Return the settings of the production profile, whose own ones win."""
    values = {name: value for name, value in given.items() if not name.startswith("%")}
    for name, value in given.items():
        if name.startswith(PRODUCTION):
            values[name.removeprefix(PRODUCTION)] = value
        elif name.startswith("%"):
            made.ignored[name] = OTHER_PROFILE
    return values


def _take_formats(
    values: Mapping[str, str], made: ServerFile, variable: Callable[[str], str | None]
) -> None:
    """Read ``debezium.format.*``; settings of one part win over common ones."""
    own: dict[str, tuple[str, str]] = {}
    for name, text in values.items():
        if not name.startswith(FORMAT):
            continue
        value, rest = _expanded(text, values, variable), name.removeprefix(FORMAT)
        record_part, _, setting = rest.partition(".")
        if record_part not in RECORD_PARTS:
            for each in RECORD_PARTS:
                made.flat[f"{each}.converter.{rest}"] = name, value
        elif setting:
            own[f"{record_part}.converter.{setting}"] = name, value
        else:
            own[f"{record_part}.converter"] = (
                name,
                FORMATS.get(value.strip().casefold(), value.strip()),
            )
    made.flat.update(own)


def _take_sink(
    values: Mapping[str, str], made: ServerFile, variable: Callable[[str], str | None]
) -> None:
    kind = made.sink_type[1] if made.sink_type else ""
    prefix, needless = f"{SINK}{kind}.", OF_SINK.get(kind, {})
    for name, text in values.items():
        if not name.startswith(SINK) or name == SINK_TYPE:
            continue
        setting = name.removeprefix(prefix)
        if not kind or not name.startswith(prefix):
            known = [SINK_TYPE] if not kind else [f"{prefix}{name.removeprefix(SINK)}", SINK_TYPE]
            other = name.removeprefix(SINK).partition(".")[0]
            if kind and other != kind and nearest(other, [kind]) is None:
                made.ignored[name] = f"it is of the sink {other}, and debezium.sink.type is {kind}"
            else:
                made.unknown[name] = nearest(name, known)
        elif setting in needless:
            made.ignored[name] = needless[setting]
        else:
            here = RENAMED.get(kind, {}).get(setting, setting)
            made.sink[here] = name, _expanded(text, values, variable)


def _expanded(
    text: str,
    values: Mapping[str, str],
    variable: Callable[[str], str | None],
    depth: int = DEPTH_MAX,
) -> str:
    """Expand Quarkus's expressions: properties, variables, defaults.

    A variable becomes ``${env:NAME}``, so that no output shows its value.
    """

    def replaced(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        if name in PROVIDERS and default is not None:
            return match[0]
        if name in values and depth:
            return _expanded(values[name], values, variable, depth - 1)
        for word in (name, re.sub(r"[^A-Za-z0-9]", "_", name).upper()):
            if variable(word) is not None:
                return f"${{env:{word}}}"
        return f"${{env:{name}}}" if default is None else default

    return EXPRESSION.sub(replaced, text)
