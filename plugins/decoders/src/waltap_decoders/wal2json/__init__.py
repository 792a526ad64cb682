"""wal2json: changes as JSON text.

Format 1 has one object per transaction, or chunks of it; format 2 has one object per change. The
decoder is loaded on first use.
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
