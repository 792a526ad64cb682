"""decoderbufs: changes as protobuf messages.

The decoder and protobuf are loaded on first use.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from waltap_decoders.decoderbufs.decoder import DecoderBufs

__all__ = ["DecoderBufs"]


# Profiles with another decoder must not pay for the import of protobuf.
def __getattr__(name: str) -> Any:
    if name != "DecoderBufs":
        raise AttributeError(f"{__name__} has no {name}")
    from waltap_decoders.decoderbufs.decoder import DecoderBufs

    return DecoderBufs
