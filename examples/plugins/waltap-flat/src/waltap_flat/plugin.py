"""What this distribution contributes to waltap."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import FormatSpec
from waltap_flat.format import FlatFormat

WALTAP_API = 1


@hookimpl
def register_formats() -> Iterable[FormatSpec]:
    """Contribute the format."""
    yield FormatSpec(
        name="flat",
        summary="Flat JSON: the operation, and the row's columns as texts.",
        factory=FlatFormat,
    )
