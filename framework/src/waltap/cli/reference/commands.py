"""Generate the page of all commands from the application."""

from typing import TYPE_CHECKING, Any

from waltap.base.text import GENERATED, table

if TYPE_CHECKING:
    from waltap.plugins.host import Host

__all__ = ["commands_page"]


def commands_page(host: "Host") -> str:
    """Return the page of waltap's commands, then the plugins'."""
    from typer.main import get_command

    from waltap.cli.application import COMMANDS, application

    root: Any = get_command(application)
    context = root.make_context("waltap", ["plugins"])
    lines = ["# Commands", "", GENERATED, "", (root.help or "").strip(), ""]
    lines += [
        "Exit codes: 0 done, 1 failed, 2 bad configuration or usage, 3 retriable and retries spent,",
        "4 a run that a changed profile ended (`--exit-on-change`), 5 of `verify`: nothing differs,",
        "but some tables are late.",
        "Errors are short; `WALTAP_TRACEBACK=1` shows the traceback as well. `WALTAP_PLUGINS`",
        "limits which plugins load, `WALTAP_LOG_LEVEL` and `WALTAP_LOG` (json, text) what is logged.",
        "",
    ]
    for name in COMMANDS:
        lines += _command(f"waltap {name}", root.get_command(context, name))
    # A plugin may register a command that the application has too; it is listed once, above.
    for name in sorted(set(host.commands) - set(COMMANDS)):
        lines += _command(f"waltap {name}", root.plugin_command(name))
    return "\n".join(lines).rstrip() + "\n"


def _command(name: str, command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    usage = " ".join([name, *(_argument(p) for p in arguments)])
    children = getattr(command, "commands", {})
    # A group has no action of its own: the user names one of its commands.
    if children:
        usage += " COMMAND"
    lines = [f"## `{usage}`", "", _text(command.help), ""]
    if arguments or options:
        rows = [(f"`{_argument(p)}`", _text(getattr(p, "help", ""))) for p in arguments]
        rows += [(f"`{_option(p)}`", _text(p.help)) for p in options]
        lines += [*table(("argument", "meaning"), rows), ""]
    if getattr(command, "epilog_of", None) is not None:
        lines += [_text(command.epilog_of()), ""]
    for child, nested in children.items():
        lines += _command(f"{name} {child}", nested)
    return lines


def _argument(parameter: Any) -> str:
    metavar = str(parameter.metavar or parameter.name.upper())
    # Some metavars are declared with brackets already.
    return metavar if parameter.required else f"[{metavar.strip('[]')}]"


def _option(parameter: Any) -> str:
    names = ", ".join(parameter.opts)
    return names if parameter.is_flag else f"{names} {parameter.metavar or 'TEXT'}"


def _text(text: str | None) -> str:
    # Line breaks of a help text depend on the width of the code, not of the page.
    paragraphs = (text or "").strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
