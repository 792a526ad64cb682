"""``waltap doctor``: looks at the database before a start and says what mends what it finds."""

import json
from dataclasses import asdict
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
from waltap.errors import WaltapError

if TYPE_CHECKING:
    from waltap.source.connector import Check

__all__ = ["command"]

MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "error": "[red]error[/]"}


def command(
    source: SourceArgument,
    sink: SinkOption = None,
    set_: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check everything that capture needs, and change nothing. Exit code 1 when there are errors."""
    checks = _checks(source, sink, overrides(set_))
    if as_json:
        typer.echo(json.dumps([asdict(check) for check in checks], indent=2))
    else:
        _print(checks)
    if any(check.verdict == "error" for check in checks):
        raise typer.Exit(1)


def _checks(source: str, sink: str | None, settings: dict[str, str]) -> "list[Check]":
    from waltap.cli.connection import connected
    from waltap.config.resolve import resolve
    from waltap.host import Host

    host, raw = Host(), read(source)
    profile = resolve(raw, host, sink=any_sink(raw, sink), overrides=settings)
    with connected(profile, host) as (connector, _parts):
        checks = connector.check()
    for spec in host.checks.values():
        try:
            checks += spec.factory(profile)
        except Exception as error:  # noqa: BLE001 - the other checks are worth their answers
            checks.append(_failed(spec.name, host.blamed(error)))
    return checks


def _failed(name: str, error: Exception) -> "Check":
    """Return what stands for a check that raised."""
    from waltap.source.connector import Check

    if isinstance(error, WaltapError):
        return Check(name=name, verdict="error", found=error.problem, remedy=error.advice())
    found = f"{type(error).__name__}: {error}"
    return Check(name=name, verdict="error", found=found, remedy=WaltapError.remedy)


def _print(checks: "list[Check]") -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from waltap.cli.screen import answers

    table = Table("", "check", "found", box=box.SIMPLE_HEAD)
    table.columns[2].overflow = "fold"
    for check in checks:
        found = escape(check.found)
        if check.remedy and check.verdict != "ok":
            found += f"\n[cyan]→ {escape(check.remedy)}[/]"
        table.add_row(MARKS.get(check.verdict, check.verdict), escape(check.name), found)
    console = answers()
    console.print(table)
    errors = sum(check.verdict == "error" for check in checks)
    warnings = sum(check.verdict == "warning" for check in checks)
    if errors:
        console.print(f"[red]{errors} to mend before waltap can run[/], {warnings} warnings")
    else:
        console.print(f"[green]ready to run[/], {warnings} warnings")
