"""Properties of wal2json, and the options that make its output safe to read."""

from typing import Literal

from waltap.config.property import Properties, declare

__all__ = ["Wal2JsonProperties", "plugin_options"]


class Wal2JsonProperties(Properties):
    """What wal2json is asked for."""

    format_version: Literal["1", "2"] = declare(
        "wal2json.format-version",
        default="2",
        summary="2: an object per change; 1: an object per transaction (at most 1 GB of it).",
    )
    write_in_chunks: bool = declare(
        "wal2json.write-in-chunks",
        default=False,
        summary="With format 1: send a transaction in pieces, as Debezium's wal2json_streaming did.",
    )
    numbers_as_strings: bool = declare(
        "wal2json.numeric-data-types-as-string",
        default=False,
        summary="Tell NaN and infinities apart from NULL (wal2json 2.6 or later).",
    )


def plugin_options(properties: Wal2JsonProperties) -> dict[str, str]:
    """Return the options for START_REPLICATION.

    Type names are never asked for: wal2json writes them unescaped, so that a quoted one breaks the
    JSON. Their OIDs are numbers. Defaults of columns, also unescaped, are not asked for either. The
    primary key is: it is that of the row's moment, whatever the replica identity; format 1 tells it under
    DEFAULT alone.
    """
    options = {
        "format-version": properties.format_version,
        "include-xids": "true",
        "include-timestamp": "true",
        "include-lsn": "true",
        "include-origin": "true",
        "include-types": "false",
        "include-type-oids": "true",
        "include-pk": "true",
    }
    if properties.write_in_chunks and properties.format_version == "1":
        options["write-in-chunks"] = "true"
    if properties.numbers_as_strings:
        options["numeric-data-types-as-string"] = "true"
    return options
