"""Capabilities and remarks of each decoder.

They are apart from the decoders because every run reads the capabilities, while only a profile
that uses a decoder loads its code.
"""

from dataclasses import replace

from waltap.changes.decode.decoder import DecoderCapabilities

# Remarks for users of each decoder, one sentence each.
#
# docs/reference/decoders.md prints them. tests/conformance/test_decoders_conform.py checks what the
# decoders make of a real server's changes.

PGOUTPUT_REMARKS = (
    "Generated columns are not sent, unless a publication of PostgreSQL 18 says so.",
    "With pgoutput.streaming: logical messages of savepoints that were rolled back come, too.",
)

YBOUTPUT_REMARKS = (
    "Verified against a protocol double built from published sources; no YugabyteDB server was run.",
    "Generated columns are not sent.",
    "Tables without primary key are not sent.",
    "A change of the key arrives as a delete and an insert that do not refer to each other.",
    "Values of composite types are NULL, as the server's defaults have it.",
    "Under identity CHANGE a column that was not written is distinguished from NULL, whatever its type.",
)

_NAMES_ALONE = (
    "With lag: of tables that had one name over time, rows of all but the last may go to another of them.",
    "With lag: rows of a materialized view that is gone may seem to be a table's of its name.",
    "With lag: a column that a row leaves out, renamed or dropped since, may be missing or renamed.",
    "DDL beside row changes in one transaction is looked for 20 times a second at most.",
    "Changes under a name that is not captured leave no gap once the table is captured again.",
)


WAL2JSON_REMARKS = (
    *_NAMES_ALONE,
    "Generated columns are sent as well.",
    "An origin comes as the server's number for it, without its LSN.",
    "The content of a logical message ends at its first NUL.",
    "Format 1 has no TRUNCATE.",
    "Format 1, unless in chunks, gives all changes of a transaction the LSN of its first frame.",
    "A column that was dropped may show as unchanged until the next insert: DDL is not announced.",
)

DECODERBUFS_REMARKS = (
    *_NAMES_ALONE,
    "With lag: a dropped key is reported for later rows, too.",
    "Generated columns are sent as well.",
    "The zone of timetz is lost: values are in UTC.",
    "Infinite dates are known by convention only.",
)


# On the newest servers; an instance of the decoder has the negotiated ones.
PGOUTPUT = DecoderCapabilities(
    truncate=True,
    logical_messages=True,
    origin=True,
    streaming=True,
    two_phase=True,
    relation_messages=True,
    publication_filters=True,
)

# pgoutput's without the messages that it never sends.
YBOUTPUT = replace(
    PGOUTPUT, truncate=False, logical_messages=False, origin=False, streaming=False, two_phase=False
)

# Two more losses have no capability: ±infinity of dates is known only by convention, and the zone
# of timetz does not arrive.
DECODERBUFS = DecoderCapabilities()

# Capabilities of format 2. An origin arrives as the server's number for it, not as its name; the
# content of a logical message ends at its first NUL.
WAL2JSON = DecoderCapabilities(
    truncate=True, logical_messages=True, origin=True, special_numbers=False
)
