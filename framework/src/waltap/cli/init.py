"""``waltap init``: writes a commented profile to start from."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from waltap.cli.confirm import answered
from waltap.cli.live_console import echo
from waltap.cli.profile_source import read
from waltap.config.redaction import looks_secret
from waltap.errors import COMMAND_LINE, ConfigurationError, PropertyProblem

if TYPE_CHECKING:
    from waltap.config.property import Properties, PropertyDeclaration
    from waltap.host import Host
    from waltap.specs import ConnectorSpec, SinkSpec

__all__ = ["command", "compose", "without_password"]

LINE = 100
VARIABLE = "WALTAP_SINK_PASSWORD"
_PASSWORD = re.compile(r"^(\w[\w+.-]*://[^/?#:]*:)(?!(?:\$\{[^}]*\})+@)[^/?#]+@")
"""What an address has before its password, and that: up to the last @ before the path, as readers of
addresses take it."""
SHAPE = {
    "topic.prefix",
    "schema.include.list",
    "table.include.list",
    "table.exclude.list",
    "column.exclude.list",
    "message.key.columns",
    "skipped.operations",
    "tombstones.on.delete",
    "time.precision.mode",
    "decimal.handling.mode",
}
"""The capture properties that a new profile lists; the reference page has them all."""


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Profile to write.")] = Path(
        "waltap.toml"
    ),
    dsn: Annotated[
        str | None,
        typer.Option("--dsn", metavar="URI", help="Database, e.g. postgres://user@host/db."),
    ] = None,
    sink: Annotated[
        str | None, typer.Option("--sink", metavar="NAME[:VALUE]", help="Where changes go.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write a commented profile; asks for what the options do not say."""
    from waltap.host import Host
    from waltap.specs import ConnectorSpec, SinkSpec

    if file.exists() and not force:
        problem = PropertyProblem(str(file), "exists already", allowed="another name, or --force")
        raise ConfigurationError([problem], origin=COMMAND_LINE)
    host = Host()
    uri = dsn or answered(
        "--dsn", "Database (URI)", default="postgres://postgres@localhost:5432/postgres"
    )
    raw = read(uri)
    if "source" not in raw.types:
        problem = PropertyProblem(
            "--dsn", "names no database", allowed="postgres://user@host:port/db"
        )
        raise ConfigurationError([problem], origin=COMMAND_LINE)
    source = {name: setting.value for name, setting in raw.settings.items()}
    connector = host.find(ConnectorSpec, str(raw.types["source"].value))
    if sink is None:
        sinks = ", ".join(sorted(host.sinks))
        sink = answered("--sink", f"Sink ({sinks})", default=_default_sink(host))
    name, _, value = sink.partition(":")
    sink_spec = host.find(SinkSpec, name)
    secrets = [n for n in source if looks_secret(n) and not n.endswith("file")]
    variables = {n: f"WALTAP_{n.rpartition('.')[2].upper()}" for n in secrets}
    source |= {name: f"${{env:{variable}}}" for name, variable in variables.items()}
    given, value = value, without_password(value)
    text = compose(file.stem, connector, source, sink_spec, value)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as cause:
        problem = PropertyProblem(str(file), f"cannot be written: {cause.strerror}")
        raise ConfigurationError([problem], origin=COMMAND_LINE) from cause
    echo(f"wrote {file}")
    for name, variable in variables.items():
        echo(f"{name} is not in it: export {variable}=…")
    if value != given:
        echo(
            f"the password of the sink's address is not in it: export {VARIABLE}=…, as it stood there"
        )
    echo(f"Next: waltap doctor {file}, then waltap run {file}")


def without_password(address: str) -> str:
    """Return the address of a sink with the name of a variable in place of a password."""
    return _PASSWORD.sub(rf"\g<1>${{env:{VARIABLE}}}@", address)


def compose(
    name: str,
    connector: "ConnectorSpec",
    source: dict[str, object],
    sink: "SinkSpec",
    sink_value: str,
) -> str:
    """Return the text of a profile: what is given, and what most people change, commented out."""
    from waltap.capture.properties import CaptureProperties
    from waltap.config.resolve import pipeline_name
    from waltap.config.selection import SelectionProperties
    from waltap.pipeline.properties import EngineProperties

    lines = [
        f"# Profile of the waltap pipeline {name!r}. Lines that are commented out show defaults.",
        "# Every property: waltap explain FILE. Secrets: ${env:NAME} or ${file:PATH}.",
        "",
        "[source]",
        f"type = {_toml(connector.name)}",
    ]
    lines += _section(connector.properties, source, pipeline=pipeline_name(name))
    lines += _section(SelectionProperties, {}, only={"plugin.name", "snapshot.mode"})
    lines += ["", "# What is captured, and what events look like."]
    lines += _section(CaptureProperties, {"topic.prefix": name}, only=SHAPE)
    lines += ["", "[sink]", f"type = {_toml(sink.name)}"]
    lines += _section(sink.properties, {sink.shorthand: sink_value} if sink_value else {})
    lines += ["", "[engine]"]
    lines += _section(EngineProperties, {})
    return "\n".join(lines) + "\n"


def _section(
    model: "type[Properties] | None",
    given: dict[str, object],
    only: set[str] | None = None,
    pipeline: str = "",
) -> list[str]:
    from waltap.config.property import declarations

    lines: list[str] = []
    for declaration in declarations(model) if model is not None else ():
        known = declaration.name in given
        if declaration.family is not None:
            members = [name for name in given if declaration.family.fullmatch(name)]
            lines += [f"{_key(name)} = {_toml(given[name])}" for name in members]
            continue
        if only and declaration.name not in only:
            continue
        if declaration.advanced and not known:
            continue
        lines += ["", *_comment(declaration)]
        if known:
            lines.append(f"{_key(declaration.name)} = {_toml(given[declaration.name])}")
        elif declaration.required:
            lines.append(f'{_key(declaration.name)} = ""  # required')
        else:
            lines.append(f"# {_key(declaration.name)} = {_toml(_default(declaration, pipeline))}")
    return lines


def _default(declaration: "PropertyDeclaration", pipeline: str) -> object:
    """Return the default that a profile of our own has, "" for none."""
    if declaration.secret:
        return "${env:NAME}"
    value = declaration.profile_default_of(pipeline)
    value = declaration.default if value is None else value
    return "" if value is None else value


def _comment(declaration: "PropertyDeclaration") -> list[str]:
    """Return summary, unit and allowed values as comment lines."""
    import textwrap

    text = declaration.summary
    if declaration.unit:
        text += f" Unit: {declaration.unit}."
    if declaration.choices:
        text += f" One of: {', '.join(declaration.choices)}."
    return textwrap.wrap(text, LINE, initial_indent="# ", subsequent_indent="# ")


def _key(name: str) -> str:
    """Return a property's name as a TOML key; quoted, so that no name can be part of another."""
    return json.dumps(name)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(str(value), ensure_ascii=False)


def _default_sink(host: "Host") -> str:
    """Return the sink that is offered: files that Spark can read, where there is a plugin for it."""
    wanted = (("spark", "spark:tables"), ("changelog", "changelog:changes"), ("jsonl", "jsonl:-"))
    return next((offer for name, offer in wanted if name in host.sinks), "terminal")
