"""Maintain live Spark tables from the waltap change log."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waltap_spark.read.live import LiveTables, open_tables

__all__ = ["LiveTables", "open_tables"]


def __getattr__(name: str) -> Any:
    """Import the public names on first use."""
    if name in __all__:
        # every start of ``waltap`` imports this package, so it must stay cheap
        from waltap_spark.read import live

        return getattr(live, name)
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
