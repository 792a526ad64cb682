"""Properties of wal2json and options for safe output."""

from typing import Literal

from waltap.base.property import Properties, Switch, declare


class Wal2JsonProperties(Properties):
    """Requests to wal2json."""

    format_version: Literal["1", "2"] = declare(
        "wal2json.format-version",
        default="2",
        summary="2: an object per change; 1: an object per transaction (at most 1 GB of it).",
    )
    write_in_chunks: Switch = declare(
        "wal2json.write-in-chunks",
        summary="With format 1: send a transaction in pieces, as Debezium's wal2json_streaming did.",
    )
    numbers_as_strings: Switch = declare(
        "wal2json.numeric-data-types-as-string",
        summary="Distinguish NaN and infinities from NULL (wal2json 2.6 or later).",
    )


def plugin_options(properties: Wal2JsonProperties) -> dict[str, str]:
    """Return the options for START_REPLICATION."""
    options = {
        "format-version": properties.format_version,
        "include-xids": "true",
        "include-timestamp": "true",
        "include-lsn": "true",
        "include-origin": "true",
        # wal2json writes type names unescaped, so a quoted one breaks the JSON; OIDs are safe.
        # Defaults of columns are unescaped, too, and are not asked for.
        "include-types": "false",
        "include-type-oids": "true",
        # The primary key at the row's time, whatever the replica identity; format 1 gives it under
        # DEFAULT only.
        "include-pk": "true",
    }
    if properties.write_in_chunks and properties.format_version == "1":
        options["write-in-chunks"] = "true"
    if properties.numbers_as_strings:
        options["numeric-data-types-as-string"] = "true"
    return options
