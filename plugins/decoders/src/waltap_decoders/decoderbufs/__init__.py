"""decoderbufs: changes as protobuf messages.

The decoder and protobuf are loaded on first use.
"""

from typing import TYPE_CHECKING

from waltap.base.import_rules import on_first_use

if TYPE_CHECKING:
    from waltap_decoders.decoderbufs.decoder import DecoderBufs

__all__ = ["DecoderBufs"]

# Profiles with another decoder must not pay for the import of protobuf.
__getattr__ = on_first_use(__name__)
