"""Generate the page of hooks for plugin authors."""

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, get_args

from waltap.base.text import GENERATED, table
from waltap.plugins import hookspecs
from waltap.ports.specs import KINDS, SpecKind

__all__ = ["hooks_page"]

# Prefix of a hook's name → heading of its phase.
PHASES = (
    ("register_", "Register: once, at start-up"),
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
    ]
    for prefix, heading in PHASES:
        lines += [f"## {heading}", ""]
        for name, hook in _hooks(prefix):
            lines += [f"### `{name}{_signature(hook)}`", ""]
            lines += [_paragraphs(inspect.getdoc(hook) or ""), ""]
            kind = next((kind for kind in KINDS if kind.hook == name), None)
            if kind is not None:
                lines += [*_spec(kind), ""]
    return "\n".join(lines).rstrip() + "\n"


def _hooks(prefix: str) -> list[tuple[str, Callable[..., Any]]]:
    """Return the hooks of one phase in the order of the source."""
    return [(n, h) for n, h in vars(hookspecs).items() if n.startswith(prefix) and callable(h)]


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
    """Return the fields of the spec that a hook collects."""
    assert is_dataclass(kind.spec)
    rows = []
    for entry in fields(kind.spec):
        if entry.default is not MISSING:
            default = f"`{entry.default!r}`"
        else:
            default = "required" if entry.default_factory is MISSING else "empty"
        rows.append((f"`{entry.name}`", f"`{_type(entry.type)}`", default))
    first = (inspect.getdoc(kind.spec) or "").split("\n\n")
    heading = f"`{kind.spec.__name__}`: {_paragraphs(chr(10).join(first))}"
    return [heading, "", *table(("field", "type", "default"), rows)]


def _paragraphs(text: str) -> str:
    """Return a docstring's paragraphs as Markdown."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n")).replace("``", "`")
