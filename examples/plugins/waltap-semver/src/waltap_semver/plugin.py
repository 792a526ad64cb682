"""What this distribution contributes to waltap."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from waltap.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from waltap.changes.mapping import TypeSpec

WALTAP_API = 1


@hookimpl
def register_types() -> "Iterable[TypeSpec]":
    """Contribute the type: every column of it, wherever the extension was created."""
    from waltap_semver.mapping import SPEC

    return [SPEC]
