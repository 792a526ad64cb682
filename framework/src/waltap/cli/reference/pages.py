"""List the reference pages."""

import importlib
import inspect
import pkgutil
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from importlib.resources import files
from typing import Any, Final, get_args

from typer.main import get_command

from waltap.base.property import declarations
from waltap.base.text import GENERATED, table
from waltap.changes.decode.decoder import DecoderCapabilities
from waltap.cli.application import COMMANDS, application
from waltap.cli.reference.properties import components, properties_page
from waltap.cli.reference.types import types_page
from waltap.config.debezium import OLD_NAMES, debezium_names
from waltap.errors import RetryVerdict, WaltapError
from waltap.plugins import hookspecs
from waltap.plugins.host import Host, PluginHealth
from waltap.ports.specs import KINDS, DecoderSpec, Spec, SpecKind
from waltap.services.monitor.metrics import METRICS, OBSERVED

_Row = tuple[str, str]

# An argument that so many commands have in the same words is explained once, at the top.
SHARED_ROWS: Final = 3


def commands_page(host: Host) -> str:
    """Return the page of waltap's commands, then the plugins'."""
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
    commands = {name: root.get_command(context, name) for name in COMMANDS}
    # A plugin may register a command that the application has too; it is listed once.
    for name in sorted(set(host.commands) - set(COMMANDS)):
        commands[name] = root.plugin_command(name)
    counted = Counter(row for each in commands.values() for row in _all_rows(each))
    shared = [row for row, count in counted.most_common() if count >= SHARED_ROWS]
    lines += ["Arguments of several commands:", "", *_list(shared), ""]
    for name, command in commands.items():
        lines += _command(f"waltap {name}", command, shared)
    return "\n".join(lines).rstrip() + "\n"


def _command(name: str, command: Any, shared: list[_Row]) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    usage = " ".join([name, *(_argument(p) for p in arguments)])
    children = getattr(command, "commands", {})
    # A group has no action of its own: the user names one of its commands.
    if children:
        usage += " COMMAND"
    lines = [f"## `{usage}`", "", _text(command.help), ""]
    rows = _rows(command)
    own = [row for row in rows if row not in shared]
    if own:
        lines += [*_list(own), ""]
    # The usage shows the arguments.
    options = [
        name for name, meaning in rows if name.startswith("`-") and (name, meaning) in shared
    ]
    if options:
        lines += [f"{'Also' if own else 'Options:'} {', '.join(options)}.", ""]
    if getattr(command, "epilog_of", None) is not None:
        lines += [_text(command.epilog_of()), ""]
    for child, nested in children.items():
        lines += _command(f"{name} {child}", nested, shared)
    return lines


def _rows(command: Any) -> list[_Row]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and p.name != "help"]
    rows = [(f"`{_argument(p)}`", _text(getattr(p, "help", ""))) for p in arguments]
    return rows + [(f"`{_option(p)}`", _text(p.help)) for p in options]


def _all_rows(command: Any) -> Iterator[_Row]:
    yield from _rows(command)
    for nested in getattr(command, "commands", {}).values():
        yield from _all_rows(nested)


def _list(rows: Iterable[_Row]) -> list[str]:
    return [f"- {name}: {meaning}" for name, meaning in rows]


def _argument(parameter: Any) -> str:
    metavar = str(parameter.metavar or parameter.name.upper())
    # Some metavars are declared with brackets already.
    return metavar if parameter.required or metavar.startswith("[") else f"[{metavar}]"


def _option(parameter: Any) -> str:
    names = ", ".join(parameter.opts)
    return names if parameter.is_flag else f"{names} {parameter.metavar or 'TEXT'}"


def _text(text: str | None) -> str:
    # Line breaks of a help text depend on the width of the code, not of the page.
    paragraphs = (text or "").strip().split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


# Capability → its meaning to a user.
MEANINGS = {
    "old_key": "The old key comes with an update of the key and with a delete.",
    "old_row": "Under REPLICA IDENTITY FULL the whole old row comes with updates and deletes.",
    "truncate": "The wire has TRUNCATE.",
    "logical_messages": "The wire has messages of `pg_logical_emit_message`.",
    "origin": "A transaction that was replicated into the database names its origin.",
    "streaming": "A large transaction can be received while it is in progress.",
    "two_phase": "A prepared transaction can be received when it is prepared.",
    "unchanged": "An unchanged TOAST value differs from NULL.",
    "special_numbers": "NaN and infinities differ from NULL.",
    "relation_messages": "A change of a table's columns is announced in the stream.",
    "publication_filters": "The server applies publications: tables, operations, row filters, columns.",
    "commit_timestamps": "The time of commit comes with each transaction.",
}


def decoders_page(host: Host) -> str:
    """Return the page."""
    specs = list(host.decoders.values())
    lines = ["# Decoders", "", GENERATED, ""]
    lines += [
        "A decoder reads what one logical decoding output plugin of the server sends; `plugin.name`",
        "chooses it. Whatever the decoder, the same statements give the same events, except for what",
        "this page says. Tests hold it to that: one scenario runs through all decoders at once on a",
        "real server, and their records are compared, one by one.",
        "",
    ]
    heads = ("", *(f"`{spec.name}`" for spec in specs))
    rows = [("output plugin", *(f"`{spec.output_plugin}`" for spec in specs))]
    rows += [
        (
            f"`{each.name}`: {MEANINGS[each.name]}",
            *("yes" if getattr(spec.capabilities, each.name) else "no" for spec in specs),
        )
        for each in fields(DecoderCapabilities)
    ]
    lines += ["## What each can carry", "", *table(heads, rows), ""]
    for spec in specs:
        lines += [*_section(spec), ""]
    return "\n".join(lines).rstrip() + "\n"


def _section(spec: DecoderSpec) -> list[str]:
    lines = [f"## `{spec.name}`", "", spec.summary]
    if spec.aliases:
        lines += ["", f"Also named {', '.join(f'`{alias}`' for alias in spec.aliases)}."]
    if spec.forced_options:
        # Properties write booleans in lower case.
        given = ", ".join(
            f"`{name}={str(value).lower() if isinstance(value, bool) else value}`"
            for name, value in spec.forced_options.items()
        )
        lines += ["", f"It is {given}."]
    if spec.remarks:
        lines += ["", *(f"- {remark}" for remark in spec.remarks)]
    return lines


# First digit of a code → heading of its errors.
FAMILIES = {
    "1": "Configuration and plugins",
    "2": "Source",
    "3": "Decode",
    "4": "Snapshot",
    "5": "Sink",
    "6": "Offsets",
    "9": "Bugs",
}
RETRIES = {
    RetryVerdict.NEVER: "",
    RetryVerdict.RECONNECT: " *Reconnects.*",
    RetryVerdict.SAME_BATCH: " *Repeats.*",
}


def error_classes(packages: Collection[str]) -> list[type[WaltapError]]:
    """Return the error classes of ``packages``, sorted by code."""
    # Classes are known once their modules are imported, so all modules are imported.
    for package in sorted(packages):
        for module in _modules(package):
            try:
                importlib.import_module(module)
            except ImportError:
                # The module needs an optional library that is not installed.
                continue
    # Tests and other programs may define subclasses, too; they do not belong on the page.
    found = {c for c in WaltapError.family() if c.__module__.partition(".")[0] in packages}
    return sorted(found, key=lambda c: (c.code, c.__name__))


def errors_page(host: Host) -> str:
    """Return the page."""
    lines = ["# Errors", "", GENERATED, ""]
    lines += [
        "Every error has a stable code, a cause, and a remedy: the command, property or SQL that fixes",
        "it. waltap tries again by itself only where an entry says so: after a reconnect (*reconnects*),",
        "or with the same batch (*repeats*). The message fills `{…}` in. Exit codes: 1 failed, 2 bad",
        "configuration or plugin, 3 retriable and retries spent.",
        "",
    ]
    # A plugin may be installed, and yet be kept out by WALTAP_PLUGINS.
    loaded = [plugin for plugin in host.plugins() if plugin.health is not PluginHealth.NOT_LOADED]
    packages = {"waltap", *(plugin.module.partition(".")[0] for plugin in loaded)}
    family = ""
    for error in error_classes(packages):
        if error.code[3] != family:
            family = error.code[3]
            lines += [f"## {FAMILIES.get(family, family)}", ""]
        lines += [f"### {error.code}", ""]  # other pages link to the code
        about = _flat(inspect.cleandoc(error.__doc__ or "").split("\n\n")[0])
        lines += [f"`{error.__name__}`: {about}{RETRIES[error.retry]}", ""]
        lines += [_flat(error.remedy), ""]
    return "\n".join(lines).rstrip() + "\n"


def _flat(text: str) -> str:
    return " ".join(text.replace("``", "`").split())


def _modules(package: str) -> Iterator[str]:
    root = importlib.import_module(package)
    yield package
    for module in pkgutil.walk_packages(getattr(root, "__path__", ()), f"{package}."):
        # An import of ``__main__`` would run a command, and pytest may be missing.
        if not module.name.endswith(("__main__", "pytest_plugin")):
            yield module.name


# Most words of a first sentence of a spec that only repeats the noun of its hook.
SPEC_NOUN_WORDS: Final = 4

# Prefix of a hook's name → heading of its phase.
PHASES = (
    ("register_", "Register: when first needed"),
    ("choose_", "Choose: rarely; the first answer that is not None wins"),
    ("on_", "Observe: per batch or change of state, never per row"),
)


def hooks_page() -> str:
    """Return the page."""
    lines = ["# Hooks", "", GENERATED, ""]
    lines += [_paragraphs(inspect.cleandoc(hookspecs.__doc__ or "")), ""]
    lines += [
        "A plugin is a module, named by an entry point of group `waltap`, with functions marked",
        "`@hookimpl` (`from waltap.plugins.hookspecs import hookimpl`). Keep heavy imports inside the",
        "factories: the module is imported by every `waltap` command.",
        "",
        "The specs that hooks return, each with the fields of its own:",
        "",
        *_fields(Spec),
        "",
    ]
    for prefix, heading in PHASES:
        lines += [f"## {heading}", ""]
        # in the order of the source
        hooks = ((n, h) for n, h in vars(hookspecs).items() if n.startswith(prefix) and callable(h))
        for name, hook in hooks:
            lines += [f"### `{name}{_signature(hook)}`", ""]
            lines += [_paragraphs(inspect.getdoc(hook) or ""), ""]
            kind = next((kind for kind in KINDS if kind.hook == name), None)
            if kind is not None:
                lines += [*_spec(kind), ""]
    return "\n".join(lines).rstrip() + "\n"


def _signature(hook: Callable[..., Any]) -> str:
    signature = inspect.signature(hook)
    arguments = ", ".join(f"{p.name}: {_type(p.annotation)}" for p in signature.parameters.values())
    answer = _type(signature.return_annotation)
    return f"({arguments}) -> {answer}"


def _type(annotation: object) -> str:
    """Return a type without the names of its modules."""
    if annotation is None:
        return "None"
    # ``list[int]`` counts as a type, but its name lacks the arguments.
    plain = isinstance(annotation, type) and not get_args(annotation)
    text = annotation.__name__ if plain else str(annotation)  # type: ignore[attr-defined]
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", text.strip("'\"")).replace("'", "")


def _spec(kind: SpecKind) -> list[str]:
    """Return the spec that a hook collects, with its fields."""
    first, _, rest = _paragraphs(inspect.getdoc(kind.spec) or "").partition(". ")
    # A short first sentence repeats the noun of the hook.
    text = rest if len(first.split()) <= SPEC_NOUN_WORDS else f"{first}. {rest}".rstrip(" .") + "."
    lines = [*([text, ""] if text else []), *_fields(kind.spec)]
    # The hook collects specs of these classes, too.
    for special in kind.spec.__subclasses__():
        if special.__module__ != kind.spec.__module__:
            continue
        lines += ["", _paragraphs(inspect.getdoc(special) or ""), "", *_fields(special)]
    return lines


def _fields(spec: Any) -> list[str]:
    """Return a spec's own fields as Python."""
    parent: str = spec.__base__.__name__
    base = f"({parent})" if is_dataclass(spec.__base__) else ""
    own = inspect.get_annotations(spec)
    lines = ["```python", f"class {spec.__name__}{base}:"]
    for entry in fields(spec):
        if entry.name not in own:
            continue
        line = f"    {entry.name}: {_type(entry.type)}"
        if entry.default is not MISSING:
            line += f" = {entry.default!r}"
        elif entry.default_factory is not MISSING:
            line += f" = {entry.default_factory()!r}"
        lines.append(line)
    return [*lines, "```"]


def _paragraphs(text: str) -> str:
    """Return a docstring's paragraphs as Markdown."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")).replace("``", "`")


METRICS_INTRODUCTION = """\
`/metrics` of `waltap run FILE --http HOST:PORT`, in Prometheus' text form. Every metric has the label
`pipeline`. Names in `_total` are counters, which begin at 0 with each run; others are gauges, if not
marked; further labels are in parentheses. [Dashboard and alert rules](../howto/monitoring.md) use them."""

OF_DEBEZIUM = """\
Each attribute of the MBeans of Debezium 3.6's connector for PostgreSQL, and its counterpart."""


def mbeans() -> dict[str, dict[str, str]]:
    """Return context → attribute of Debezium's MBeans → its counterpart here."""
    text = files("waltap.cli.reference").joinpath("mbeans.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def metrics_page() -> str:
    """Return the page."""
    lines = ["# Metrics", "", GENERATED, "", METRICS_INTRODUCTION, ""]
    for each in (*METRICS, *OBSERVED):
        labels = f" ({', '.join(each.labels)})" if each.labels else ""
        kind = "*Histogram*: " if each.kind == "histogram" else ""
        lines.append(f"- `{each.shown}`{labels}: {kind}{each.summary}")
    lines += ["", "## Coming from Debezium", "", OF_DEBEZIUM]
    for name, mapping in mbeans().items():
        lines += ["", f"### {name}", ""]
        lines += _list(mapping.items())
    return "\n".join(lines).rstrip() + "\n"


DEBEZIUM_INTRODUCTION = """\
A property of Debezium's PostgreSQL connector, of its embedded engine, of Debezium Server, of Kafka Connect
or of its worker is honoured, mapped to something else, without effect, or refused. What is refused is in
one list, before anything is made on the server. `waltap explain FILE --given` shows this for a file.

An unknown name is refused too, with the nearest known name.
"""

ACCEPTED = """\
Accepted with Debezium's default, and with what else asks for nothing that waltap lacks; any other value is
refused."""

IGNORED = """\
Accepted with any value: they tune or name parts that waltap does not have or need."""


def debezium_page(host: Host) -> str:
    """Return the page."""
    # A declared property is honoured, so an entry of the known names does not count for it.
    declared = {d.name for _, _, model in components(host) for d in declarations(model)}
    names = debezium_names()
    others = {name: entry for name, entry in names.known.items() if name not in declared}
    lines = ["# Debezium's properties", "", GENERATED, "", DEBEZIUM_INTRODUCTION]
    lines += ["## Honoured", ""]
    lines += ["All of [Properties](properties.md) whose names do not begin with `waltap.`.", ""]
    lines += ["## Mapped", ""]
    lines += _list(
        (", ".join(f"`{n}`" for n in given.split(", ")), to) for given, to in names.mapped.items()
    )
    lines += ["", "## Refused", ""]
    lines += [ACCEPTED, ""]
    wanting = {n: e for n, e in others.items() if not e.ignored}
    lines += table(
        ("property", "accepted values", "why no other"),
        (
            (f"`{name}`", ", ".join(f"`{v}`" for v in e.harmless_values) or "none", e.why)
            for name, e in sorted(wanting.items())
        ),
    )
    lines += ["", "## Without effect", ""]
    lines += [IGNORED, ""]
    ignored = {n: e.why for n, e in others.items() if e.ignored}
    for pattern, entry in names.families:
        if entry.ignored:
            ignored.update(dict.fromkeys(_readable(pattern.pattern), entry.why))
    lines += _list(_by_reason(ignored))
    lines += ["", "## Old names", ""]
    lines += [
        "Names of older Debezium versions, and the present ones; accepted, with a warning.",
        "",
    ]
    lines += _list((f"`{old}`", f"`{new}`") for old, new in sorted(OLD_NAMES.items()))
    return "\n".join(lines).rstrip() + "\n"


def _by_reason(names: dict[str, str]) -> Iterable[tuple[str, str]]:
    for why in dict.fromkeys(names.values()):
        yield ", ".join(f"`{name}`" for name in sorted(names) if names[name] == why), why


def _readable(pattern: str) -> Iterator[str]:
    """Yield the names that a family's pattern matches.

    ``NAME`` represents a free part.
    """
    plain = pattern.replace("\\.", ".").replace("(..+)?", ".NAME").replace("..+", ".NAME")
    # ``a.(b|c).d`` becomes ``a.b.d`` and ``a.c.d``.
    match = re.fullmatch(r"([^()]*)\(([^()]+)\)([^()]*)", plain)
    before, words, behind = match.groups() if match else ("", plain, "")
    for word in words.split("|"):
        yield f"{before}{word}{behind}"


def pages(host: Host) -> dict[str, Callable[[], str]]:
    """Return the pages for the plugins of ``host`` by their paths below ``docs/``."""
    return {
        "reference/properties.md": lambda: properties_page(host),
        "reference/debezium.md": lambda: debezium_page(host),
        "reference/errors.md": lambda: errors_page(host),
        "reference/hooks.md": hooks_page,
        "reference/metrics.md": metrics_page,
        "reference/cli.md": lambda: commands_page(host),
        "reference/decoders.md": lambda: decoders_page(host),
        "reference/types.md": lambda: types_page(host.types),
    }
