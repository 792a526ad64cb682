"""Types of extensions, written as a plugin would write them: they need `waltap.mapping`, and nothing else.

An import contract keeps it so.
"""

from waltap_postgres.extension_types.pgvector import PGVECTOR_SPECS
from waltap_postgres.extension_types.postgis import POSTGIS_SPECS

__all__ = ["EXTENSION_SPECS"]

EXTENSION_SPECS = (*POSTGIS_SPECS, *PGVECTOR_SPECS)
