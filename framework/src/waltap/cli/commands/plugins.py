"""``waltap plugins``: the installed plugins, their parts, and their health."""

import json
import re
from importlib.metadata import requires
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer
from rich.text import Text

from waltap import __version__
from waltap.cli.profile_source import Json
from waltap.cli.terminal import answers, echo
from waltap.errors import usage_error
from waltap.plugins.host import Host, PluginHealth, PluginInfo
from waltap.ports.specs import KINDS
from waltap.services.monitor.views import table

NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
PREFIX = "waltap-"
SUFFIX = ".tmpl"
"""Templates carry it so that nothing takes them for Python."""
FOLDERS = {"src": "src/{package}", "test": "tests"}
"""Folder of a template → folder of the package that is made."""

TemplateKind = Literal[
    "decoder",
    "sink",
    "transform",
    "record-transform",
    "format",
    "offset-store",
    "signal-action",
    "signal-channel",
    "notification-channel",
    "type",
    "converter",
    "snapshotter",
    "replica-identity",
    "topic-naming",
    "check",
    "command",
]
"""Plugins with a template: connectors are too large for one, and predicates are a single line."""


def new(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name of the plugin, e.g. acme or waltap-acme.")
    ],
    kind: Annotated[
        TemplateKind,
        typer.Option(
            "--kind",
            metavar="KIND",
            help=f"What it provides: {', '.join(get_args(TemplateKind))}.",
        ),
    ],
    into: Annotated[
        Path, typer.Option("--into", metavar="DIR", help="Folder to make the package's folder in.")
    ] = Path(),
) -> None:
    """Make a plugin package with tests that pass, to start from."""
    folder = generate(name, kind, into)
    echo(f"made {folder}")
    echo(f"Next: cd {folder} && pip install -e '.[test]' && pytest && waltap plugins")


def generate(name: str, kind: TemplateKind, into: Path) -> Path:
    """Write the package and return its folder.

    Raises: ConfigurationError for a name that cannot be one, or a folder that is there already.
    """
    from waltap.cli.application import COMMANDS

    if not NAME.fullmatch(name):
        allowed = "lower-case letters and digits, parts joined by -"
        raise usage_error("NAME", "cannot be a plugin's name", value=name, allowed=allowed)
    bare = name.removeprefix(PREFIX)
    # pip would replace our distribution by a package of its name
    if f"{PREFIX}{bare}" in {re.split(r"[^\w-]", own)[0] for own in requires("waltap") or ()}:
        raise usage_error("NAME", "is of a distribution of waltap's own", value=name)
    templates, code = files("waltap.cli.commands") / "templates", bare.replace("-", "").upper()
    hook = re.search(
        r"def register_(\w+)",
        (templates / kind / "src" / "plugin.py.tmpl").read_text(encoding="utf-8"),
    )
    assert hook is not None
    (provided,) = [each.spec for each in KINDS if each.attribute == hook[1]]
    taken = {*COMMANDS} if kind == "command" else set()
    for spec in Host().specs(provided):
        taken |= {spec.name, *getattr(spec, "aliases", ())}
    if bare in taken or code == "WT":
        raise usage_error("NAME", "is taken", value=name)
    folder = into / f"{PREFIX}{bare}"
    if folder.exists():
        raise usage_error(str(folder), "exists already", allowed="another name, or --into")
    words = {
        "name": bare,
        "distribution": f"{PREFIX}{bare}",
        "package": f"{PREFIX}{bare}".replace("-", "_"),
        "class": "".join(part.capitalize() for part in bare.split("-")),
        "code": code,
        "kind": f"{'An' if kind == 'offset-store' else 'A'} {kind.replace('-', ' ')}",
        "advice": (templates / kind / "advice.txt").read_text(encoding="utf-8").strip(),
        "waltap": __version__,
    }
    try:
        for source in (templates / "every", templates / kind):
            _write(source, folder, words)
    except OSError as cause:
        raise usage_error(str(folder), f"cannot be written: {cause.strerror}") from cause
    return folder


def _write(source: Traversable, target: Path, words: dict[str, str]) -> None:
    for entry in source.iterdir():
        if entry.is_dir():
            _write(entry, target / FOLDERS[entry.name].format(**words), words)
        elif entry.name.endswith(SUFFIX):
            text = entry.read_text(encoding="utf-8")
            for word, value in words.items():
                text = text.replace("{{" + word + "}}", value)
            target.mkdir(parents=True, exist_ok=True)
            (target / entry.name.removesuffix(SUFFIX)).write_text(text, encoding="utf-8")


docs = typer.Typer(add_completion=False, help="Write the reference pages, or check them.")


@docs.callback(invoke_without_command=True)
def write(
    context: typer.Context,
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="The folder `docs`.")
    ] = Path("docs"),
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 when a page is stale.")
    ] = False,
) -> None:
    """Write the pages of reference/ from the plugins' declarations."""
    if context.invoked_subcommand is not None:
        return
    from waltap.cli.reference.pages import pages

    stale = []
    for name, page in pages(Host()).items():
        path, text = folder / name, page()
        try:
            if path.exists() and path.read_bytes() == text.encode():
                continue
            stale.append(path)
            if not check:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text.encode())
        except (OSError, ValueError) as cause:
            why = (
                cause.strerror if isinstance(cause, OSError) else "this is not the name of a folder"
            )
            raise usage_error("--folder", f"cannot be used: {why}", value=str(folder)) from cause
    for path in stale:
        echo(f"stale: {path}" if check else f"wrote {path}")
    if check and stale:
        echo("run `waltap docs` and commit the pages", err=True)
        raise typer.Exit(1)


@docs.command()
def schema() -> None:
    """Print the JSON Schema of a waltap profile, for editors."""
    from waltap.cli.reference.properties import profile_schema

    echo(json.dumps(profile_schema(Host()), indent=2, ensure_ascii=False))


plugins = typer.Typer(add_completion=False, help="List plugins, or make a new one.")
plugins.command("new")(new)


@plugins.callback(invoke_without_command=True)
def list_plugins(
    context: typer.Context,
    as_json: Json = False,
) -> None:
    """List every plugin: distribution, version, contents, health.

    WALTAP_PLUGINS=name,name limits which plugins load.
    """
    if context.invoked_subcommand is not None:
        return
    plugins = Host().plugins()
    if as_json:
        echo(json.dumps([_document(plugin) for plugin in plugins], indent=2))
        return
    _print(plugins)


def _document(plugin: PluginInfo) -> dict[str, Any]:
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


def _print(plugins: list[PluginInfo]) -> None:
    colours = {PluginHealth.OK: "green", PluginHealth.NOT_LOADED: "dim"}
    rows = []
    for plugin in plugins:
        provides = {kind.replace("_", " "): names for kind, names in plugin.provides.items()}
        provides["hooks"] = tuple(h for h in plugin.hooks if h.startswith(("on_", "choose_")))
        listed = [f"{kind}: {', '.join(names)}" for kind, names in provides.items() if names]
        health = Text(plugin.health.value, colours.get(plugin.health, "red"))
        provided = "\n".join(listed) or "-"
        rows.append((plugin.name, plugin.distribution, plugin.version, health, provided))
    console = answers()
    console.print(table(("plugin", "distribution", "version", "health", "provides"), rows))
    for plugin in plugins:
        if plugin.error is not None:
            console.print(f"{plugin.name}: {plugin.error}", style="red", markup=False)
