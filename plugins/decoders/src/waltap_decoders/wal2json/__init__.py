"""wal2json: changes as JSON text, format 1 (a transaction an object, or in chunks) and format 2.

The decoder is loaded when it is asked for.
"""

from typing import TYPE_CHECKING, Any

from waltap_decoders.wal2json.properties import Wal2JsonProperties

if TYPE_CHECKING:
    from waltap_decoders.wal2json.decoder import Wal2Json

__all__ = ["Wal2Json", "Wal2JsonProperties"]


def __getattr__(name: str) -> Any:
    if name != "Wal2Json":
        raise AttributeError(f"{__name__} has no {name}")
    from waltap_decoders.wal2json.decoder import Wal2Json

    return Wal2Json
