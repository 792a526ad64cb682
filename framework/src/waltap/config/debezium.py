"""Know the properties of Debezium and Kafka Connect that no component declares.

``debezium_names.toml`` has their names, defaults and treatment.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any


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
