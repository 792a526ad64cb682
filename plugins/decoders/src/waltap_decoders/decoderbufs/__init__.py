"""decoderbufs: changes as protobuf messages."""

from waltap_decoders.decoderbufs.decoder import CAPABILITIES, DecoderBufs

__all__ = ["CAPABILITIES", "DecoderBufs"]
