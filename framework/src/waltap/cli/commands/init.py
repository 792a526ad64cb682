"""Write a commented profile to start from (``waltap init``)."""

import json
import re
import textwrap
from collections.abc import Container, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from waltap.base.property import Properties, PropertyDeclaration, declarations
from waltap.base.redaction import looks_secret
from waltap.changes.capture.properties import CaptureProperties
from waltap.cli.profile_source import read
from waltap.cli.terminal import answered, echo
from waltap.config.layers import READERS
from waltap.config.pipeline_properties import EngineProperties
from waltap.config.profile import SelectionProperties
from waltap.config.resolve import pipeline_name
from waltap.errors import usage_error
from waltap.plugins.host import Host
from waltap.ports.specs import ConnectorSpec, SinkSpec

LINE = 100
VARIABLE = "WALTAP_SINK_PASSWORD"
CAPTURE = {
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
"""The capture properties that ``--all`` lists; the reference page has the others."""
_PASSWORD = re.compile(r"^(\w[\w+.-]*://[^/?#:]*:)(?!(?:\$\{[^}]*\})+@)[^/?#]+@")
"""An address up to its password, and the password up to the last @ before the path, as clients read it."""


def init(
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
    every: Annotated[
        bool, typer.Option("--all", help="List the other settings too, commented out.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace a file that exists.")] = False,
) -> None:
    """Write a commented profile; asks for missing options."""
    if file.suffix.lower() in READERS.keys() - {".toml"}:
        raise usage_error(str(file), "names another form of profile", allowed="FILE.toml")
    if file.exists() and not force:
        raise usage_error(str(file), "exists already", allowed="another name, or --force")
    host = Host()
    uri = dsn or answered(
        "--dsn", "Database (URI)", default="postgres://postgres@localhost:5432/postgres"
    )
    raw = read(uri)
    if "source" not in raw.types:
        raise usage_error("--dsn", "names no database", allowed="postgres://user@host:port/db")
    source = {name: setting.value for name, setting in raw.settings.items()}
    connector = host.find(ConnectorSpec, str(raw.types["source"].value))
    if sink is None:
        sinks = ", ".join(sorted(host.sinks))
        # Tables for Spark where a plugin writes them.
        wanted = {"spark": "spark:tables", "changelog": "changelog:changes", "jsonl": "jsonl:-"}
        offer = next((wanted[name] for name in wanted if name in host.sinks), "terminal")
        sink = answered("--sink", f"Sink ({sinks})", default=offer)
    name, _, given = sink.partition(":")
    sink_spec = host.find(SinkSpec, name)
    secrets = [n for n in source if looks_secret(n) and not n.endswith("file")]
    variables = {n: _variable(n) for n in secrets}
    source |= {name: f"${{env:{variable}}}" for name, variable in variables.items()}
    value = without_password(given)
    text = compose(file.stem, connector, source, sink_spec, value, every=every)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as cause:
        raise usage_error(str(file), f"cannot be written: {cause.strerror}") from cause
    echo(f"wrote {file}")
    for name, variable in variables.items():
        echo(f"{name} is not in it: export {variable}=…")
    if secret := _unset_secret(connector, source):
        echo(
            f"{secret} is not given: where the server asks for one, take the # from its line in "
            f"{file}, and export {_variable(secret)}=…"
        )
    if value != given:
        echo(
            f"the password of the sink's address is not in it: export {VARIABLE}=…, as given there"
        )
    echo(f"Next: waltap doctor {file}, then waltap run {file}")


def _variable(name: str) -> str:
    return f"WALTAP_{name.rpartition('.')[2].upper()}"


def _unset_secret(connector: ConnectorSpec, given: Mapping[str, object]) -> str:
    """Return the connector's common secret that is not given, "" for none."""
    model = connector.properties
    names = (
        (each.name for each in declarations(model) if each.secret and each.common) if model else ()
    )
    return next((name for name in names if name not in given), "")


def without_password(address: str) -> str:
    """Return a sink's address with a variable's name instead of its password."""
    return _PASSWORD.sub(rf"\g<1>${{env:{VARIABLE}}}@", address)


def compose(
    name: str,
    connector: ConnectorSpec,
    source: dict[str, object],
    sink: SinkSpec,
    sink_value: str,
    *,
    every: bool = False,
) -> str:
    """Return a profile's text, with defaults commented out.

    Others are those that most profiles set; ``every`` adds all of the source, the sink and the engine.
    """
    pipeline = pipeline_name(name)
    of_sink = {sink.shorthand: sink_value} if sink_value else {}
    section = partial(_section, every=every, pipeline=pipeline)
    lines = [
        "# A waltap profile. A line that is commented out shows a default. All properties: waltap",
        "# explain FILE, or waltap init --all. Secrets: ${env:NAME} or ${file:PATH}.",
        f"name = {_toml(name)}",
        "",
        "[source]",
        f"type = {_toml(connector.name)}",
        *section(connector.properties, source),
        *section(SelectionProperties, {}, only={"plugin.name", "snapshot.mode"}),
        *section(CaptureProperties, {"topic.prefix": pipeline}, only=CAPTURE),
        "",
        "[sink]",
        f"type = {_toml(sink.name)}",
        *section(sink.properties, of_sink, chosen=True),
        "",
        "[engine]",
        *section(EngineProperties, {}),
    ]
    return "\n".join(lines) + "\n"


def _section(
    model: type[Properties] | None,
    given: Mapping[str, object],
    *,
    every: bool,
    pipeline: str,
    only: Container[str] | None = None,
    chosen: bool = False,
) -> list[str]:
    """Return the lines of a component; ``chosen``: common settings are active."""
    lines: list[str] = []
    for declaration in declarations(model) if model is not None else ():
        name = declaration.name
        if declaration.family is not None:
            members = [each for each in given if declaration.family.fullmatch(each)]
            lines += [f"{_key(each)} = {_toml(given[each])}" for each in members]
        elif name in given:
            comment = _comment(declaration, full=True) if every else []
            lines += [*comment, f"{_key(name)} = {_toml(given[name])}"]
        elif declaration.required:
            lines += [*_comment(declaration, full=every), f'{_key(name)} = ""  # required']
        elif declaration.common or (every and (only is None or name in only)):
            default = _toml(_default(declaration, pipeline))
            mark = "" if chosen and declaration.common else "# "
            lines += [*_comment(declaration, full=every), f"{mark}{_key(name)} = {default}"]
    return lines


def _default(declaration: PropertyDeclaration, pipeline: str) -> object:
    """Return the default in a profile of waltap's, "" for none."""
    if declaration.secret:
        variable = _variable(declaration.name) if declaration.common else "NAME"
        return f"${{env:{variable}}}"
    value = declaration.profile_default_of(pipeline)
    value = declaration.default if value is None else value
    return "" if value is None else value


def _comment(declaration: PropertyDeclaration, *, full: bool) -> list[str]:
    text = declaration.summary
    if not full:
        text = text.partition(". ")[0].removesuffix(".") + "."
    if declaration.unit:
        text += f" Unit: {declaration.unit}."
    if declaration.choices:
        text += f" One of: {', '.join(declaration.choices)}."
    return textwrap.wrap(text, LINE, initial_indent="# ", subsequent_indent="# ")


def _key(name: str) -> str:
    """Return a property's name as a quoted TOML key."""
    return json.dumps(name)


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    return json.dumps(str(value), ensure_ascii=False)
