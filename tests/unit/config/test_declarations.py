"""What a component declares of a property is what a profile is held to: a table that the declarations give."""

from collections.abc import Iterator
from typing import Any

from waltap.base.property import PropertyDeclaration, declarations
from waltap.cli.reference.properties import components
from waltap.config.layers import read_tables
from waltap.config.resolve import survey
from waltap.plugins.host import Host

HOST = Host()
SOURCE = {"type": "postgres", "database.dbname": "d"}
ALWAYS = ("Pipeline", "Engine", "Capture", "Connector `postgres`", "Decoder `pgoutput`")


def cases() -> Iterator[tuple[str, PropertyDeclaration]]:
    """Give every property that is one of a closed set, or has a type or bounds, with where it is written."""
    for heading, _, model in components(HOST):
        kind, _, name = heading.replace("`", "").partition(" ")
        if heading not in ALWAYS and kind != "Sink":
            continue
        for declaration in declarations(model):
            if declaration.family is None and (declaration.choices or declaration.info.metadata):
                yield (name if kind == "Sink" else ""), declaration


def bad_values(declaration: PropertyDeclaration) -> list[Any]:
    """Return values that the type or a bound of the property excludes."""
    if declaration.choices:
        return ["no-such-choice"]
    found: list[Any] = []
    for check in declaration.info.metadata:
        found += [check.ge - 1] if getattr(check, "ge", None) is not None else []
        found += [check.gt] if getattr(check, "gt", None) is not None else []
        found += [check.le + 1] if getattr(check, "le", None) is not None else []
    return [*found, "many"] if found else []


def profile(sink: str, name: str, value: object) -> dict[str, dict[str, Any]]:
    if sink:
        return {"source": SOURCE, "sink": {"type": sink, name: value}}
    return {"source": SOURCE | {name: value}, "sink": {"type": "null"}}


def test_a_value_that_a_property_does_not_take_is_refused_by_name_with_what_it_takes() -> None:
    tried = 0
    for sink, declaration in cases():
        for value in bad_values(declaration):
            name = f"sink.{declaration.name}" if sink else declaration.name
            found = survey(read_tables(profile(sink, declaration.name, value), "p.toml"), HOST)
            reported = [each for each in found.problems if each.property == name]
            assert [each.allowed for each in reported] == [declaration.allowed], (name, value)
            tried += 1
    assert tried > 150


def test_a_value_that_is_its_default_or_a_choice_is_taken() -> None:
    for sink, declaration in cases():
        good = list(declaration.choices)
        if declaration.default is not None:
            default = declaration.default
            good.append(",".join(map(str, default)) if isinstance(default, tuple) else str(default))
        name = f"sink.{declaration.name}" if sink else declaration.name
        for value in good:
            found = survey(read_tables(profile(sink, declaration.name, value), "p.toml"), HOST)
            assert name not in {each.property for each in found.problems}, (name, value)
