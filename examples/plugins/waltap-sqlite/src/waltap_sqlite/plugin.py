"""What this distribution contributes to waltap."""

from collections.abc import Iterable

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import OffsetStoreSpec
from waltap_sqlite.store import SqliteOffsetStore, SqliteProperties

WALTAP_API = 1


@hookimpl
def register_offset_stores() -> Iterable[OffsetStoreSpec]:
    """Contribute the offset store."""
    yield OffsetStoreSpec(
        name="sqlite",
        summary="One row of an SQLite database.",
        properties=SqliteProperties,
        factory=SqliteOffsetStore,
    )
