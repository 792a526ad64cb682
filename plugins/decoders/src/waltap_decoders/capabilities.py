"""Capabilities of wal2json and decoderbufs.

They are apart from the decoders because every run reads the capabilities, while only a profile
that uses a decoder loads its code.
"""

from waltap.decode.decoder import DecoderCapabilities

__all__ = ["DECODERBUFS", "WAL2JSON"]

# Two more losses have no capability: ±infinity of dates is known only by convention, and the zone
# of timetz does not arrive.
DECODERBUFS = DecoderCapabilities()

# Capabilities of format 2. An origin arrives as the server's number for it, not as its name; the
# content of a logical message ends at its first NUL.
WAL2JSON = DecoderCapabilities(
    truncate=True,
    logical_messages=True,
    origin=True,
    special_numbers=False,
)
