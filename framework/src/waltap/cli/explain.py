"""``waltap explain``: every property of a profile with its value, where it comes from, its meaning."""

import json
from itertools import groupby
from typing import TYPE_CHECKING, Annotated

import typer

from waltap.cli.profile_source import (
    SetOption,
    SinkOption,
    SourceArgument,
    any_sink,
    overrides,
    read,
)

if TYPE_CHECKING:
    from waltap.config.namespace import Explained
    from waltap.config.resolve import Resolution

__all__ = ["command"]


def command(
    source: SourceArgument,
    sink: SinkOption = None,
    set_: SetOption = None,
    given: Annotated[
        bool, typer.Option("--given", help="Leave out properties that have their default.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show every property of a profile: value, where it comes from, meaning. Secrets are hidden."""
    from waltap.config.resolve import examine
    from waltap.host import Host

    raw = read(source)
    used = any_sink(raw, sink)
    resolution = examine(raw, Host(), sink=used, overrides=overrides(set_))
    rows = [e for e in resolution.explained if not given or e.origin != "default"]
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
            }
            for e in rows
        ]
        typer.echo(json.dumps(document, indent=2, ensure_ascii=False))
        return
    _print(resolution, rows)
    if used != sink:
        typer.echo("No sink is given: waltap run needs [sink] or --sink NAME:VALUE.", err=True)


def _print(resolution: "Resolution", rows: "list[Explained]") -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from waltap.cli.screen import answers

    console = answers()
    profile = resolution.profile
    console.print(
        f"[bold]{escape(profile.name)}[/]: {profile.connector.spec.name} → "
        f"{profile.decoder.spec.name} → {profile.format.spec.name} → {profile.sink.spec.name}"
    )
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
    if resolution.ignored:
        names = ", ".join(resolution.ignored)
        console.print(f"Accepted, and without effect in waltap: {names}", markup=False)
    for warning in resolution.warnings:
        console.print(f"[yellow]warning:[/] {escape(warning)}")
