"""Every property that Debezium declares is honoured, mapped, without effect or refused, and one page says so."""

import json
import re
from pathlib import Path

import pytest

from waltap.config.debezium_names import KNOWN_NAMES, MAPPED, OLD_NAMES, known
from waltap.config.layers import read_debezium
from waltap.config.property import declarations
from waltap.config.resolve import examine
from waltap.host import Host
from waltap.reference.debezium import debezium_page
from waltap.reference.properties import components, properties_page

HOST = Host()
RECORDED = json.loads(
    (Path(__file__).parents[2] / "differential" / "debezium_properties.json").read_text()
)
NAMES = sorted({name for group in RECORDED.values() for name in group})
DECLARED = [d for _, _, model in components(HOST) for d in declarations(model)]
SINGLE = {name for declaration in DECLARED for name in declaration.names}
FAMILIES = [declaration.family for declaration in DECLARED if declaration.family]
PATTERNS = {
    "column.mask.hash.([^.]+).with.salt.(.+)": "column.mask.hash.SHA-256.with.salt.S",
    "column.mask.with.(d+).chars": "column.mask.with.3.chars",
    "column.truncate.to.(d+).chars": "column.truncate.to.3.chars",
}
"""How Debezium declares families of its own → one member."""
MAPPED_NAMES = {
    re.split(r"[.=](?:NAME|required|enabled)", n)[0] for k in MAPPED for n in k.split(", ")
}


def test_debezium_declares_what_it_is_known_for() -> None:
    assert len(NAMES) > 170
    assert {"slot.name", "offset.mismatch.strategy", "tasks.max", "signal.kafka.topic"} <= set(
        NAMES
    )


@pytest.mark.parametrize("name", NAMES)
def test_something_becomes_of_every_property(name: str) -> None:
    member = PATTERNS.get(name, name)
    declared = member in SINGLE or any(family.fullmatch(member) for family in FAMILIES)
    entry = known(member)
    assert declared or entry or member in OLD_NAMES or member in MAPPED_NAMES
    if not declared and entry is not None:
        assert entry.why or member in MAPPED_NAMES, "accepted, and nobody says why"


def test_a_file_with_every_default_runs() -> None:
    """And each of its properties is honoured, or told to have no effect, with the reason."""
    defaults = {
        name: default
        for group in ("connect", "connector", "fields")
        for name, default in RECORDED[group].items()
        if default is not None and default != "" and name not in PATTERNS and default != "[]"
    }
    defaults = {name: text.strip("[]") for name, text in defaults.items()}
    given = {
        **defaults,
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "topic.prefix": "t",
        "database.dbname": "d",
        "waltap.sink.type": "null",
    }
    resolution = examine(read_debezium(given, "c.properties"), HOST)
    honoured = {each.name for each in resolution.explained}
    for name in defaults:
        now = OLD_NAMES.get(name, name)
        assert now in honoured or resolution.reasons.get(now) or now in MAPPED_NAMES, name


def test_the_page_has_every_name_of_the_table() -> None:
    page, properties = debezium_page(HOST), properties_page(HOST)
    for name in {*KNOWN_NAMES, *OLD_NAMES} - SINGLE:
        assert f"`{name}`" in page, name
    for name in KNOWN_NAMES:
        assert f"`{name}`" in page or f"`{name}`" in properties
