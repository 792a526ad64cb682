"""List the reference pages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waltap.plugins.host import Host

__all__ = ["ReferencePage", "pages"]


@dataclass(frozen=True, slots=True)
class ReferencePage:
    """Describe one reference page."""

    # The path below ``docs/``.
    path: str
    # Generates the page.
    text: Callable[[], str]


def pages(host: "Host") -> list[ReferencePage]:
    """Return the pages for the plugins of ``host``."""
    from waltap.changes.mapping.type_reference import types_page
    from waltap.cli.reference.commands import commands_page
    from waltap.cli.reference.debezium import debezium_page
    from waltap.cli.reference.decoders import decoders_page
    from waltap.cli.reference.errors import errors_page
    from waltap.cli.reference.hooks import hooks_page
    from waltap.cli.reference.metrics import metrics_page
    from waltap.cli.reference.properties import properties_page

    return [
        ReferencePage("reference/properties.md", lambda: properties_page(host)),
        ReferencePage("reference/debezium.md", lambda: debezium_page(host)),
        ReferencePage("reference/errors.md", lambda: errors_page(host)),
        ReferencePage("reference/hooks.md", hooks_page),
        ReferencePage("reference/metrics.md", metrics_page),
        ReferencePage("reference/cli.md", lambda: commands_page(host)),
        ReferencePage("reference/decoders.md", lambda: decoders_page(host)),
        ReferencePage("reference/types.md", lambda: types_page(host.types)),
    ]
