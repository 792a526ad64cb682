"""Generate the page of decoders: capabilities, options and remarks."""

from dataclasses import fields
from typing import TYPE_CHECKING

from waltap.base.text import GENERATED, table
from waltap.changes.decode.decoder import DecoderCapabilities
from waltap.ports.specs import DecoderSpec

if TYPE_CHECKING:
    from waltap.plugins.host import Host

__all__ = ["decoders_page"]

# Capability → its meaning to a user.
MEANINGS = {
    "old_key": "The old key comes with an update of the key and with a delete.",
    "old_row": "Under REPLICA IDENTITY FULL the whole old row comes with updates and deletes.",
    "truncate": "TRUNCATE is told.",
    "logical_messages": "Messages of `pg_logical_emit_message` are told.",
    "origin": "A transaction that was replicated into the database names its origin.",
    "streaming": "A large transaction can be received while it is in progress.",
    "two_phase": "A prepared transaction can be received when it is prepared.",
    "unchanged": "A TOAST value that an update did not touch is told apart from NULL.",
    "special_numbers": "NaN and infinities are told apart from NULL.",
    "relations": "A change of a table's columns is announced in the stream.",
    "filters": "The server applies publications: their tables, operations, row filters, columns.",
    "commit_timestamps": "The time of commit comes with each transaction.",
}


def decoders_page(host: "Host") -> str:
    """Return the page."""
    specs = list(host.decoders.values())
    lines = ["# Decoders", "", GENERATED, ""]
    lines += [
        "A decoder reads what one logical decoding output plugin of the server sends; `plugin.name`",
        "chooses it. Whatever the decoder, the same statements give the same events, but for what",
        "this page says. Tests hold it to that: one scenario runs through all decoders at once on a",
        "real server, and their records are compared, one by one.",
        "",
    ]
    heads = ("", *(f"`{spec.name}`" for spec in specs))
    rows = [("output plugin", *(f"`{spec.output_plugin}`" for spec in specs))]
    rows += [(f"`{name}`", *(_mark(spec, name) for spec in specs)) for name in _capabilities()]
    lines += ["## What each can carry", "", *table(heads, rows), ""]
    meanings = [(f"`{name}`", MEANINGS[name]) for name in _capabilities()]
    lines += [*table(("capability", "meaning"), meanings), ""]
    for spec in specs:
        lines += [*_section(spec), ""]
    return "\n".join(lines).rstrip() + "\n"


def _capabilities() -> list[str]:
    return [field.name for field in fields(DecoderCapabilities)]


def _mark(spec: DecoderSpec, capability: str) -> str:
    return "yes" if getattr(spec.capabilities, capability) else "no"


def _section(spec: DecoderSpec) -> list[str]:
    lines = [f"## `{spec.name}`", "", spec.summary]
    if spec.aliases:
        lines += ["", f"Also named {', '.join(f'`{alias}`' for alias in spec.aliases)}."]
    if spec.forced_options:
        given = ", ".join(f"`{name}={_text(value)}`" for name, value in spec.forced_options.items())
        lines += ["", f"It is {given}."]
    if spec.remarks:
        lines += ["", *(f"- {remark}" for remark in spec.remarks)]
    return lines


def _text(value: object) -> str:
    # Properties write booleans in lower case.
    return str(value).lower() if isinstance(value, bool) else str(value)
