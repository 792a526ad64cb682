"""``waltap plugins``: what is installed, what each plugin provides, and whether it works."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from waltap.cli.live_console import echo
from waltap.cli.plugins_new import new

if TYPE_CHECKING:
    from waltap.plugins.host import PluginInfo

__all__ = ["command"]

command = typer.Typer(add_completion=False, help="List plugins, or make a new one.")
command.command("new")(new)


@command.callback(invoke_without_command=True)
def list_plugins(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List every plugin with its distribution, version, what it provides, and its health.

    WALTAP_PLUGINS=name,name limits which plugins load.
    """
    if context.invoked_subcommand is not None:
        return
    from waltap.plugins.host import Host

    plugins = Host().plugins()
    if as_json:
        echo(json.dumps([_document(plugin) for plugin in plugins], indent=2))
        return
    _print(plugins)


def _document(plugin: "PluginInfo") -> dict[str, Any]:
    return {
        "name": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "module": plugin.module,
        "health": plugin.health.value,
        "error": str(plugin.error) if plugin.error is not None else None,
        "provides": {kind: list(names) for kind, names in plugin.provides.items()},
        "hooks": list(plugin.hooks),
    }


def _print(plugins: "list[PluginInfo]") -> None:
    from rich import box
    from rich.table import Table

    from waltap.cli.live_console import answers
    from waltap.plugins.host import PluginHealth

    table = Table("plugin", "distribution", "version", "health", "provides", box=box.SIMPLE_HEAD)
    colours = {PluginHealth.OK: "green", PluginHealth.NOT_LOADED: "dim"}
    for plugin in plugins:
        provides = [
            f"{kind.replace('_', ' ')}: {', '.join(names)}"
            for kind, names in plugin.provides.items()
            if names
        ]
        observed = [hook for hook in plugin.hooks if hook.startswith(("on_", "choose_"))]
        if observed:
            provides.append(f"hooks: {', '.join(observed)}")
        colour = colours.get(plugin.health, "red")
        table.add_row(
            plugin.name,
            plugin.distribution,
            plugin.version,
            f"[{colour}]{plugin.health.value}[/]",
            "\n".join(provides) or "-",
        )
    console = answers()
    console.print(table)
    for plugin in plugins:
        if plugin.error is not None:
            console.print(f"{plugin.name}: {plugin.error}", style="red", markup=False)
