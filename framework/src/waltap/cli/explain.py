"""``waltap explain``: every property of a profile with its value, where it comes from, its meaning."""

import json
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from waltap.cli.live_console import echo
from waltap.cli.profile_source import (
    SetOption,
    SinkOption,
    SourceArgument,
    any_sink,
    overrides,
    read,
)

if TYPE_CHECKING:
    from waltap.config.namespace import ExplainedProperty
    from waltap.config.profile import Profile
    from waltap.config.resolve import ProfileValidation

__all__ = ["command"]


def command(
    source: SourceArgument,
    sink: SinkOption = None,
    set_: SetOption = None,
    given: Annotated[
        bool, typer.Option("--given", help="Leave out properties that have their default.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    code: Annotated[
        str | None,
        typer.Option(
            "--code",
            metavar="SCHEMA.TABLE",
            help="Print the code that is generated for a table instead.",
        ),
    ] = None,
) -> None:
    """Show every property of a profile: value, where it comes from, meaning. Secrets are hidden.

    Of a faulty profile it shows what is right, and then what is wrong: exit code 2. --code connects to
    the database; it changes nothing there.
    """
    from waltap.config.resolve import resolve, survey
    from waltap.plugins.host import Host

    raw = read(source)
    used = any_sink(raw, sink)
    if code is not None:
        settings = {
            "publication.keyless.tables": "publish"
        }  # no table is refused: none is published
        settings |= overrides(raw, set_)
        _print_code(resolve(raw, Host(), sink=used, overrides=settings), code)
        return
    found = survey(raw, Host(), sink=used, overrides=overrides(raw, set_))
    rows = [e for e in found.explained if not given or e.origin != "default"]
    if as_json:
        document = [
            {
                "name": e.name,
                "value": e.value,
                "origin": e.origin,
                "component": e.component,
                "meaning": e.declaration.summary,
                "allowed": e.declaration.allowed,
                "unit": e.declaration.unit,
                "reloadable": e.declaration.reloadable,
            }
            for e in rows
        ]
        echo(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        _print(found, rows)
    if found.problems:
        raise found.error()
    if used != sink:
        echo("No sink is given: waltap run needs [sink] or --sink NAME:VALUE.", err=True)


def _print(found: "ProfileValidation", rows: "list[ExplainedProperty]") -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from waltap.cli.live_console import answers

    console = answers()
    way = [found.chosen.get(kind, "?") for kind in ("connector", "decoder", "format", "sink")]
    console.print(f"[bold]{escape(found.name)}[/]: {escape(' → '.join(way))}")
    for component, entries in groupby(rows, key=lambda entry: entry.component):
        table = Table(
            title=component, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD
        )
        for heading in ("property", "value", "from", "meaning"):
            table.add_column(heading, overflow="fold")
        for entry in entries:
            unit = f" {entry.declaration.unit}" if entry.declaration.unit and entry.value else ""
            cells = (entry.name, entry.value + unit, entry.origin, entry.declaration.summary)
            style = "dim" if entry.origin == "default" else None
            table.add_row(*map(escape, cells), style=style)
        console.print(table)
    if found.ignored:
        console.print("Accepted, and without effect in waltap:")
        for name in found.ignored:
            console.print(f"  {name}: {found.reasons[name]}", markup=False)
    for warning in found.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}")


def _print_code(profile: "Profile", table: str) -> None:
    """Print what decoder and format generate for a table, as Python that can be read by itself."""
    from waltap.base.generated import sources
    from waltap.changes.decode.relation import name_parts
    from waltap.cli.connection import connected
    from waltap.errors import ConfigurationError, PropertyProblem
    from waltap.plugins.host import Host

    parts = name_parts(table) or []
    with connected(profile, Host()) as (connector, stages):
        relation = connector.catalogue.relation(*parts) if len(parts) == 2 else None
        if relation is None:
            raise ConfigurationError(
                [
                    PropertyProblem(
                        "--code",
                        f"finds no table {table!r}",
                        allowed="schema.table, e.g. public.orders",
                    )
                ],
                origin="the command line",
            )
        decoder = connector.decoder()
        if decoder is not None:
            decoder.prepare(relation)
        for each in stages.formats:
            each.prepare(relation)
        found = list(sources())
    for name, text in found:
        echo(f"# {name}\n{text}")
    if not found:
        echo("Nothing is generated for this table by this decoder and sink.", err=True)
