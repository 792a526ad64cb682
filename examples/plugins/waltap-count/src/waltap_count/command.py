"""A command: how many of each kind the installed plugins provide."""

import typer

from waltap.plugins.host import Host

command = typer.Typer(add_completion=False, help="Count what the installed plugins provide.")


@command.callback(invoke_without_command=True)
def count() -> None:
    """Count what the installed plugins provide."""
    totals: dict[str, int] = {}
    for plugin in Host().plugins():
        for kind, names in plugin.provides.items():
            totals[kind] = totals.get(kind, 0) + len(names)
    for kind, total in sorted(totals.items()):
        typer.echo(f"{total:3} {kind.replace('_', ' ')}")
