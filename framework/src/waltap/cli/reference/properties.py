"""Generate the page of properties, grouped by component."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from waltap.base.property import Properties, PropertyDeclaration, declarations
from waltap.base.text import GENERATED, table
from waltap.changes.capture.properties import CaptureProperties
from waltap.config.pipeline_properties import EngineProperties, OutletProperties
from waltap.config.profile import SelectionProperties

if TYPE_CHECKING:
    from waltap.plugins.host import Host


INTRODUCTION = """\
Where a property of Debezium's means the same, it has Debezium's name and default, so that a
connector's file works unchanged. In a waltap profile (TOML) everything but the sink's and the
transforms' own properties stands in one namespace: `[source]`, `[engine]`, `[format]` and
`[offsets]` only group it. In a Debezium file the sink is given by `waltap.sink.type` and
`waltap.sink.NAME`, or by `--sink`. What becomes of Debezium's other properties is
[distinguished](debezium.md).

Values may hold secrets as `${env:NAME}`, `${file:PATH}` or `${file:PATH:KEY}`; they are never shown.

A relative path (state, offset file, output, certificates, `${file:…}`) starts at the folder of the
profile's file, whatever the current directory is; one that is typed as an argument (`--sink`, `--set`),
or stands in tables given to `waltap.stream()`, at the current directory.

What a property reaches is said where that is not everything. *Records* are those of every format, with
their topics; *rows* are what sinks get that take the changes themselves: the change log, Spark, SQL
targets, lakes and files in columns. What a sink or a format declares itself reaches that alone.
"""

# So many equal rows are listed once, by the first component that has them.
SHARED_ROWS: Final = 3

_Row = tuple[str, str, str]

# `PropertyDeclaration.reach` → sentence about it. No sentence stands for both kinds.
REACH = {
    ("records",): " Reaches records, not rows.",
    ("rows",): " Reaches rows, not records.",
    (): " Changes no event.",
}


def components(host: "Host") -> Iterator[tuple[str, str, type[Properties]]]:
    """Yield (heading, section, model) of each component with properties."""
    yield "Pipeline", "[source]", SelectionProperties
    yield "Capture and events", "[source]", CaptureProperties
    yield "Engine", "[engine]", EngineProperties
    yield "One of several sinks", "[[sinks]]", OutletProperties
    kinds = (
        ("Connector", "[source]", host.connectors),
        ("Decoder", "[source]", host.decoders),
        ("Snapshot mode", "[source]", host.snapshotters),
        ("Topic naming", "[source]", host.topic_naming),
        ("Format", "[format]", host.formats),
        ("Offset store", "[offsets]", host.offset_stores),
        ("Signal channel", "[source]", host.signal_channels),
        ("Notification channel", "[source]", host.notification_channels),
        ("Sink", "[sink]", host.sinks),
        ("Table format", "[sink], as format.NAME", host.table_formats),
        ("Transform", "[[transforms]]", host.transforms),
        ("Predicate", "[predicates.NAME]", host.predicates),
        ("Converter of columns", "[[converters]]", host.converters),
    )
    for noun, section, specs in kinds:
        for name, spec in sorted(specs.items()):
            if spec.properties is not None:
                yield f"{noun} `{name}`", section, spec.properties


def properties_page(host: "Host") -> str:
    """Return the page."""
    lines = ["# Properties", "", GENERATED, "", INTRODUCTION]
    shown: dict[str, list[_Row]] = {}
    for heading, section, model in components(host):
        lines += [f"## {heading}", ""]
        rows = [_row(declaration) for declaration in declarations(model)]
        same = next((name for name, others in shown.items() if others == rows), None)
        if same is not None:
            lines += [f"The same as {same}.", ""]
            continue
        first = (model.__doc__ or "").strip().split("\n\n")[0]
        lines += [f"{first} Set in `{section}`.", ""]
        own, shared = _shared(rows, shown)
        lines += table(("property", "default", "meaning"), own)
        for name, common in shared.items():
            names = ", ".join(row[0] for row in common)
            lines += ["", f"As in [{name}](#{_anchor(name)}): {names}."]
        lines.append("")
        shown[heading] = rows
    return "\n".join(lines).rstrip() + "\n"


def _shared(
    rows: list[_Row], shown: dict[str, list[_Row]]
) -> tuple[list[_Row], dict[str, list[_Row]]]:
    """Return the rows that no earlier component has, and the others by component."""
    own, shared = rows, {}
    for name, others in shown.items():
        common = [row for row in own if row in others]
        if len(common) >= SHARED_ROWS:
            shared[name] = common
            own = [row for row in own if row not in common]
    return own, shared


def _anchor(heading: str) -> str:
    return heading.lower().replace("`", "").replace(" ", "-")


def _row(declaration: PropertyDeclaration) -> tuple[str, str, str]:
    meaning = declaration.summary
    if declaration.allowed:
        meaning += f" *{declaration.allowed}*"
        meaning += f", in {declaration.unit}" if declaration.unit else ""
    elif declaration.unit:
        meaning += f" In {declaration.unit}."
    if declaration.secret:
        meaning += " **Secret.**"
    if declaration.reloadable:
        meaning += " SIGHUP changes it while it runs."
    meaning += REACH.get(declaration.reach, "")
    others = [n for n in declaration.names[1:] if n not in declaration.deprecated]
    if others:
        meaning += f" Also called {', '.join(f'`{name}`' for name in others)}."
    # The present name may be deprecated itself; it is no old name then.
    if declaration.deprecated.keys() - {declaration.name}:
        meaning += f" Old name: {', '.join(f'`{name}`' for name in declaration.deprecated)}."
    examples = declaration.info.examples
    if examples:
        meaning += f" Example: {', '.join(f'`{example}`' for example in examples)}."
    return f"`{declaration.name}`", _default(declaration), meaning


def _default(declaration: PropertyDeclaration) -> str:
    if declaration.required:
        return "required"
    # A family is a group of properties, so it has no single default.
    if declaration.family is not None:
        return ""
    text = _code(declaration.default)
    if declaration.pipeline_name:
        return f"the pipeline's name; in a Debezium file {text}"
    if declaration.profile_default is not None:
        text = f"{_code(declaration.profile_default)}; in a Debezium file {text or 'none'}"
    return text


def _code(value: object) -> str:
    if value is None or value in ((), ""):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, list | tuple):
        return f"`{','.join(map(str, value))}`"
    return f"`{value}`"
