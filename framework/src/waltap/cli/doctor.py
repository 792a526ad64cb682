"""``waltap doctor``: looks at the database before a start and says what fixes what it finds."""

import json
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
    from waltap.ports.source.connector import PreflightCheck

__all__ = ["command"]

MARKS = {"ok": "[green]ok[/]", "warning": "[yellow]warning[/]", "error": "[red]error[/]"}


def command(
    source: SourceArgument,
    sink: SinkOption = None,
    set_: SetOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Go through the checks that `waltap run` goes through before it makes anything, and change nothing.

    Exit code 1 when there are errors, which a run would end with.
    """
    found = _checks(source, sink, set_)
    if as_json:
        echo(json.dumps([_document(check) for check in found], indent=2))
    else:
        _print(found)
    if any(check.verdict == "error" for check in found):
        raise typer.Exit(1)


def _checks(source: str, sink: str | None, set_: list[str] | None) -> "list[PreflightCheck]":
    from waltap.cli.connection import connected
    from waltap.config.resolve import resolve
    from waltap.errors import ConfigurationError
    from waltap.pipeline.setup.preflight import checks
    from waltap.plugins.host import Host
    from waltap.ports.source.connector import PreflightCheck

    host, raw = Host(), read(source)
    profile = resolve(raw, host, sink=any_sink(raw, sink), overrides=overrides(raw, set_))
    with connected(profile, host) as (connector, stages):
        found = checks(stages, connector, locked=False)
    try:
        raw.require_running()
    except ConfigurationError as error:
        problem = error.problems[0]
        check = PreflightCheck(
            name=problem.property,
            verdict="error",
            found=f"{problem.value}: the file keeps this connector from running",
            remedy=f"Take {problem.property} out to run it here",
        )
        return [check, *found]
    return found


def _document(check: "PreflightCheck") -> dict[str, str]:
    document = {
        "name": check.name,
        "verdict": check.verdict,
        "found": check.found,
        "remedy": check.remedy,
    }
    return document if check.error is None else {**document, "code": check.error.code}


def _print(checks: "list[PreflightCheck]") -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from waltap.cli.live_console import answers

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
    warned = f"{warnings} warning{'' if warnings == 1 else 's'}"
    if errors:
        wrong = f"{errors} error{'' if errors == 1 else 's'}"
        console.print(f"[red]{wrong} to fix before waltap can run[/], {warned}")
    else:
        console.print(f"[green]ready to run[/], {warned}")
