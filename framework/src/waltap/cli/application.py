"""The application: its commands, ours and the plugins', and how it ends.

Exit codes: 0 done; 1 failed; 2 bad configuration or usage; 3 retriable, and retries are spent; 4 a run
that a changed profile ended; 130 interrupted.
"""

import ctypes
import importlib
import os
import re
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

import waltap
from waltap.base.environment import tracebacks
from waltap.base.plugin_errors import HookRaised, extra_for, interrupts
from waltap.base.redaction import looks_secret, masked, redacted
from waltap.base.text import in_brief, printable, text_of
from waltap.cli.terminal import echo, notices
from waltap.errors import (
    ConfigurationError,
    PluginError,
    PropertyProblem,
    RetryVerdict,
    WaltapError,
    usage_error,
)

if TYPE_CHECKING:
    from rich.text import Text

    from waltap.plugins.host import Host


def exit_code(error: WaltapError) -> int:
    """Return 2 for bad configuration, 3 for retry, else 1."""
    if isinstance(error, ConfigurationError | PluginError):
        return 2
    return 1 if error.retry is RetryVerdict.NEVER else 3


def show(error: WaltapError) -> None:
    """Print an error for people; with WALTAP_TRACEBACK=1 its traceback first."""
    from rich.text import Text

    body = Text()
    if isinstance(error, ConfigurationError):
        noun = "problem" if len(error.problems) == 1 else "problems"
        body.append(f"{error.fields['origin']} has {len(error.problems)} {noun}:\n")
        for problem in error.problems:
            _append_problem(body, problem)
    else:
        body.append(printable(error.problem.rstrip(".")) + ".\n")
        if (cause := error.__cause__) is not None:
            line = _one_line(cause)
            if text_of(cause) not in error.problem and error.problem.rstrip(".") not in line:
                body.append(f"Cause: {line}\n", style="dim")
    body.append("\n")
    body.append(error.advice(), style="green")
    # The class name as words: SlotActive, slot active.
    title = re.sub("([A-Z])", r" \1", type(error).__name__).lower()
    _print(error, f"{error.code}{title}", body)


def show_bug(error: BaseException) -> None:
    """Print an unexpected exception as a bug of waltap or a plugin."""
    from rich.text import Text

    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    body = Text(f"{_one_line(error)}{where}\n\n")
    body.append(
        f"{WaltapError.remedy} WALTAP_TRACEBACK=1 shows the whole traceback.", style="green"
    )
    _print(error, f"{WaltapError.code} bug", body)


def _append_problem(body: "Text", problem: PropertyProblem) -> None:
    body.append("  • ")
    body.append(problem.property, style="bold")
    if problem.native:
        body.append(f" ({problem.native})", style="dim")
    body.append(f" {printable(problem.what)}")
    if problem.value is not None:
        body.append(f"; given: {problem.value}")
    if problem.allowed:
        body.append(f"; allowed: {problem.allowed}", style="dim")
    if problem.nearest:
        body.append(f"; did you mean {problem.nearest}?", style="yellow")
    body.append("\n")


def _one_line(error: BaseException) -> str:
    text = " ".join(text_of(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _print(error: BaseException, title: str, body: "Text") -> None:
    from rich.text import Text

    console = notices()
    if redacted(body.plain) != body.plain:
        body = Text(redacted(body.plain))  # colours matter less
    if tracebacks():
        trace = redacted("".join(traceback.format_exception(error)))
        console.print(trace, markup=False, soft_wrap=True)
    if console.is_terminal:
        from rich.panel import Panel

        console.print(Panel(body, title=title, title_align="left", border_style="red"))
    else:
        console.print(f"error: {title}", markup=False, soft_wrap=True)
        console.print(body, soft_wrap=True)


USAGE_ERROR: Any = typer.BadParameter.__base__
SETTINGS = "--set"
START, END = 45, 46
"""Fields of /proc/self/stat behind the name: where the arguments begin and end in our memory."""


def conceal() -> None:
    """Hide secrets in this process's arguments, which `ps` shows (Linux).

    ``sys.argv`` stays. The list shows them for a tenth of a second; a profile never does.
    """
    try:
        fields = Path("/proc/self/stat").read_text(encoding="latin-1").rpartition(")")[2].split()
        start, end = int(fields[START]), int(fields[END])
    except (OSError, ValueError, IndexError):
        return
    if not 0 < start < end:
        return
    before = ctypes.string_at(start, end - start)
    after = "\0".join(concealed(before.decode("latin-1").split("\0"))).encode("latin-1")
    if after != before and len(after) == len(before):
        ctypes.memmove(start, after, len(after))


def concealed(words: list[str]) -> list[str]:
    """Return ``words`` with stars of equal length for secrets."""
    found: list[str] = []
    for number, word in enumerate(words):
        setting = word.removeprefix(f"{SETTINGS}=")
        if setting != word or (number and words[number - 1] == SETTINGS):
            name, equals, value = setting.partition("=")
            if looks_secret(name):
                shown = "*" * len(value)
            else:  # the part after the host of an address may be a secret, too: a webhook's is
                head, scheme, rest = value.partition("://")
                host, slash, path = rest.partition("/")
                shown = f"{head}{scheme}{host}{slash}{'*' * len(path)}"
            word = f"{word[: len(word) - len(setting)]}{name}{equals}{shown}"  # noqa: PLW2901
        found.append(masked(word))
    return found


COMMANDS = {
    "init": ("commands.init", "Write a commented profile; asks for missing options."),
    "doctor": ("commands.inspection", "Run the checks of `waltap run`, and change nothing."),
    "explain": ("commands.inspection", "Show every property of a profile: value, origin, meaning."),
    "plan": (
        "commands.inspection",
        "Show the objects and tables that a start would create and read.",
    ),
    "run": (
        "commands.run",
        "Capture changes: snapshot first where the profile says so, then stream.",
    ),
    "tail": (
        "commands.special_runs",
        "Stream all changes to the terminal through a temporary slot.",
    ),
    "record": (
        "commands.special_runs",
        "Record the stream of a database, from now on, for `waltap replay`.",
    ),
    "replay": (
        "commands.special_runs",
        "Run a recording through decoder, transforms, format and sink.",
    ),
    "signal": (
        "commands.signal",
        "Send a signal to the running pipeline, on its machine and as its user.",
    ),
    "snapshot": (
        "commands.signal",
        "Read tables again while the pipeline runs, on its machine and as its user.",
    ),
    "tables": ("commands.signal", "Add tables to a pipeline or remove them, also during a run."),
    "status": ("commands.status", "Show a pipeline's process, stored offset, slot and lag."),
    "top": (
        "commands.status",
        "Show the state of every pipeline of a folder, live; Ctrl-C ends it.",
    ),
    "offsets": (
        "commands.offsets",
        "Show, move or forget the stored position of a pipeline; take it from Debezium, or give it back.",
    ),
    "slot": ("commands.slot", "Show a pipeline's replication slot, list all slots, or drop one."),
    "dead-letters": (
        "commands.dead_letters",
        "Show events that could not be delivered; deliver them again, or drop them.",
    ),
    "drop": (
        "commands.slot",
        "Remove a pipeline: the slot and publications that it made, and its stored state.",
    ),
    "repair": (
        "commands.special_runs",
        "Close gaps: continue at a new slot, and read the tables of the gap again.",
    ),
    "plugins": ("commands.plugins", "List plugins, or make a new one."),
    "docs": ("commands.plugins", "Write the reference pages, or check them."),
}
"""Commands in the order of use: module and summary. The module's function or application has the command's
name; the summary is the beginning of its help, so that a list of commands imports none of them."""


class LazyCommand(TyperCommand):
    """A command whose last help paragraph is made on request."""

    epilog_of: Callable[[], str] | None = None

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        if self.epilog_of is not None:
            formatter.write_paragraph()
            formatter.write_text(self.epilog_of())


class CommandGroup(TyperGroup):
    """Built-in commands, and commands of plugins, which load on demand."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*COMMANDS, *sorted(set(self._host.commands) - set(COMMANDS))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None.

        A plugin's command has only name and summary here: help needs only these, and a faulty
        plugin must not break the help.
        """
        if cmd_name in COMMANDS:
            module = importlib.import_module(f"waltap.cli.{COMMANDS[cmd_name][0]}")
            target = getattr(module, cmd_name.replace("-", "_"))
            return _command(cmd_name, target, getattr(module, "epilog", None))
        spec = self._host.commands.get(cmd_name)
        if spec is not None:
            return TyperCommand(cmd_name, help=spec.summary)
        extra = extra_for("commands", cmd_name)
        if extra is not None:
            return _command(cmd_name, _absent(cmd_name, extra, self._host))
        return None

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the summaries of all commands, whole."""
        summaries = {name: spec.summary for name, spec in self._host.commands.items()}
        summaries |= {name: summary for name, (_, summary) in COMMANDS.items()}
        rows = [(name, summaries[name]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command to run, loaded from its plugin. Raises: HookRaised."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and name not in COMMANDS:
            command = self.plugin_command(name) or command
        return name, command, rest

    def invoke(self, ctx: Any) -> Any:
        """Run the command; usage errors quote no secret."""
        try:
            return super().invoke(ctx)
        except USAGE_ERROR as error:
            error.message = redacted(error.message.removeprefix("Value error, "))
            raise

    def plugin_command(self, name: str) -> Any:
        """Return a plugin's command, or None. Raises: HookRaised."""
        spec = self._host.commands.get(name)
        if spec is None:
            return None
        try:
            return _command(name, spec.factory())
        except BaseException as cause:
            if interrupts(cause):
                raise
            owner = next(p for p in self._host.plugins() if name in p.provides.get("commands", ()))
            raise HookRaised(
                f"command {name!r} of {owner} cannot be made: {in_brief(cause)}",
                distribution=owner.distribution,
            ) from cause

    @cached_property
    def _host(self) -> "Host":
        from waltap.plugins.host import Host

        return Host()


def _command(name: str, target: Any, epilog: Callable[[], str] | None = None) -> Any:
    """Return the command of a typer application or of a plain function."""
    if not isinstance(target, typer.Typer):
        function, target = target, typer.Typer(add_completion=False)
        target.command(name, cls=LazyCommand)(function)
    command: Any = get_command(target)
    command.name = name
    if epilog is not None:
        command.epilog_of = epilog
    _plain(command)
    return command


def _plain(command: Any) -> None:
    """Write help and usage errors as plain text.

    The coloured form takes 60 ms to import, mostly a Markdown parser.
    """
    command.rich_markup_mode = None
    for child in getattr(command, "commands", {}).values():
        _plain(child)


def _absent(name: str, extra: str, host: "Host") -> Callable[[], None]:
    def missing() -> None:
        broken = [p for p in host.plugins() if p.error is not None]
        echo(f"waltap {name} comes with a plugin that is not usable here.", err=True)
        for plugin in broken:
            echo(f"  {plugin.error}", err=True)
        echo(f"Install it: pip install '{extra}'", err=True)
        raise typer.Exit(1)

    missing.__doc__ = f"Not installed: pip install '{extra}'."
    return missing


application = typer.Typer(
    name="waltap",
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"waltap {waltap.__version__}")
        raise typer.Exit


@application.callback()
def waltap_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Capture PostgreSQL's changes for Spark, Kafka, files, databases and others.

    Start with: waltap init, waltap doctor waltap.toml, waltap run waltap.toml.
    """


def run() -> None:
    """Run the command line and end the process."""
    conceal()
    try:
        application()
    except KeyboardInterrupt:
        sys.exit(130)
    except (BrokenPipeError, SystemExit) as end:
        if BrokenPipeError not in {type(end), type(end.__context__)}:  # the library exits for one
            raise
        sys.exit(2 if isinstance(end.__context__, USAGE_ERROR) else 0)
    except BaseException as error:  # noqa: BLE001 - a user never sees a traceback unasked
        sys.exit(_print_error(error))
    finally:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # a closed one is None
            try:
                stream.flush()
            except OSError as error:  # the interpreter's own flush would change the exit code
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
                failed = getattr(error.__context__, "code", 0) or isinstance(error, BrokenPipeError)
                if stream is sys.stdout and not failed:
                    sys.exit(_print_error(error))


def _encodable(word: str) -> bool:
    return word == word.encode(errors="ignore").decode()


def _print_error(error: BaseException) -> int:
    """Show an error; return the exit code it ends with."""
    if isinstance(error, UnicodeError) and any(not _encodable(word) for word in sys.argv):
        error = usage_error("an argument", "is not UTF-8 text")
    if not isinstance(error, WaltapError):
        from waltap.plugins.host import Host

        cause = error
        with suppress(WaltapError):  # WALTAP_PLUGINS may be what is wrong
            error = Host().blamed(cause)
        if error is not cause:
            error.__cause__ = cause
    if isinstance(error, WaltapError):
        show(error)
        return exit_code(error)
    show_bug(error)
    return 1
