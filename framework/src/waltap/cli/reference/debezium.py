"""Generate the page about the treatment of Debezium's properties."""

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from waltap.base.property import declarations
from waltap.base.text import GENERATED, table
from waltap.cli.reference.properties import components
from waltap.config.debezium_names import OLD_NAMES, debezium_names

if TYPE_CHECKING:
    from waltap.plugins.host import Host

__all__ = ["debezium_page"]

INTRODUCTION = """\
A property of Debezium's PostgreSQL connector, of its embedded engine, of Debezium Server, of Kafka Connect
or of its worker is honoured, mapped to something else, without effect, or refused. What is refused is in
one list, before anything is made on the server. `waltap explain FILE --given` tells it of a file.

A name that nobody knows is refused too, with the nearest name that there is.
"""

ACCEPTED = """\
Accepted with Debezium's default, and with what else asks for nothing that waltap lacks; any other value is
refused."""

IGNORED = """\
Accepted with any value: they tune or name parts that waltap does not have or need."""


def debezium_page(host: "Host") -> str:
    """Return the page."""
    # A declared property is honoured, so an entry of the known names does not count for it.
    declared = {d.name for _, _, model in components(host) for d in declarations(model)}
    names = debezium_names()
    others = {name: entry for name, entry in names.known.items() if name not in declared}
    lines = ["# Debezium's properties", "", GENERATED, "", INTRODUCTION]
    lines += ["## Honoured", ""]
    lines += ["All of [Properties](properties.md) whose names do not begin with `waltap.`.", ""]
    lines += ["## Mapped", ""]
    lines += table(
        ("given", "becomes"),
        (
            (", ".join(f"`{n}`" for n in given.split(", ")), to)
            for given, to in names.mapped.items()
        ),
    )
    lines += ["", "## Refused", ""]
    lines += [ACCEPTED, ""]
    wanting = {n: e for n, e in others.items() if not e.ignored}
    lines += table(
        ("property", "accepted values", "why no other"),
        ((f"`{name}`", _accepted(e.harmless_values), e.why) for name, e in sorted(wanting.items())),
    )
    lines += ["", "## Without effect", ""]
    lines += [IGNORED, ""]
    ignored = {n: e.why for n, e in others.items() if e.ignored}
    for pattern, entry in names.families:
        if entry.ignored:
            ignored.update(dict.fromkeys(_readable(pattern.pattern), entry.why))
    lines += table(("properties", "why"), _by_reason(ignored))
    lines += ["", "## Old names", ""]
    lines += ["Names of older Debezium versions; accepted, with a warning.", ""]
    lines += table(
        ("old", "present"), ((f"`{old}`", f"`{new}`") for old, new in sorted(OLD_NAMES.items()))
    )
    return "\n".join(lines).rstrip() + "\n"


def _accepted(values: tuple[str, ...]) -> str:
    return ", ".join(f"`{value}`" for value in values) or "none"


def _by_reason(names: dict[str, str]) -> Iterable[tuple[str, str]]:
    """Yield each reason's names, and the reason."""
    for why in dict.fromkeys(names.values()):
        yield ", ".join(f"`{name}`" for name in sorted(names) if names[name] == why), why


def _readable(pattern: str) -> Iterator[str]:
    """Yield the names that a family's pattern matches.

    ``NAME`` stands for a free part.
    """
    plain = pattern.replace("\\.", ".").replace("(..+)?", ".NAME").replace("..+", ".NAME")
    # ``a.(b|c).d`` becomes ``a.b.d`` and ``a.c.d``.
    match = re.fullmatch(r"([^()]*)\(([^()]+)\)([^()]*)", plain)
    before, words, behind = match.groups() if match else ("", plain, "")
    for word in words.split("|"):
        yield f"{before}{word}{behind}"
