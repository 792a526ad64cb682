"""Hook implementations of this distribution, and nothing else."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from waltap.plugins.hookspecs import hookimpl

if TYPE_CHECKING:
    from waltap.changes.mapping import TypeSpec


@hookimpl
def register_types() -> "Iterable[TypeSpec]":
    """The types of PostGIS and pgvector."""
    from waltap_types.pgvector import PGVECTOR_SPECS
    from waltap_types.postgis import POSTGIS_SPECS

    return (*POSTGIS_SPECS, *PGVECTOR_SPECS)
