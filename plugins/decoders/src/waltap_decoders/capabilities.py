"""What wal2json and decoderbufs can carry, apart from the code that reads them: it is loaded for a
profile that uses it, while every run asks for the capabilities."""

from waltap.decode.decoder import DecoderCapabilities

__all__ = ["DECODERBUFS", "WAL2JSON"]

DECODERBUFS = DecoderCapabilities()
"""What decoderbufs can carry. Also lost on its way: ±infinity of dates is known only by convention,
and the zone of timetz."""

WAL2JSON = DecoderCapabilities(
    truncate=True,
    logical_messages=True,
    origin=True,
    special_numbers=False,
)
"""What format 2 can carry. An origin comes as the server's number for it, not as its name; content
of a logical message ends at its first NUL."""
