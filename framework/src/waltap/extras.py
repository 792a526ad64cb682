"""What each extra of this distribution brings: for whoever asks for something that is not installed.

It is known of our own distributions only, and a test compares it with what they register.
"""

from collections.abc import Mapping
from typing import Final

__all__ = ["BROUGHT", "extra_for"]

BROUGHT: Final[Mapping[str, Mapping[str, tuple[str, ...]]]] = {
    "postgres": {
        "connectors": (
            "postgres",
            "postgresql",
            "io.debezium.connector.postgresql.PostgresConnector",
        ),
        "decoders": (
            "pgoutput",
            "yboutput",
            "wal2json",
            "wal2json_rds",
            "wal2json_streaming",
            "wal2json_rds_streaming",
            "decoderbufs",
        ),
        "snapshotters": (
            "initial",
            "always",
            "initial_only",
            "no_data",
            "when_needed",
            "configuration_based",
        ),
    },
    "formats": {
        "formats": (
            "avro",
            "io.confluent.connect.avro.AvroConverter",
            "json-schema",
            "io.confluent.connect.json.JsonSchemaConverter",
            "jsonschema",
            "cloudevents",
            "io.debezium.converters.CloudEventsConverter",
            "string",
            "org.apache.kafka.connect.storage.StringConverter",
            "org.apache.kafka.connect.storage.SimpleHeaderConverter",
            "bytes",
            "org.apache.kafka.connect.converters.ByteArrayConverter",
            "io.debezium.converters.ByteArrayConverter",
            "io.debezium.converters.BinaryDataConverter",
        )
    },
    "sinks": {"sinks": ("changelog",), "commands": ("changelog",)},
    "kafka": {
        "sinks": ("kafka",),
        "signal_channels": ("kafka",),
        "notification_channels": ("kafka",),
    },
    "spark": {"sinks": ("spark",), "commands": ("spark",)},
    "demo": {"commands": ("demo",)},
}
"""Extra → kind of plugin → names and aliases."""


def extra_for(kind: str, name: str) -> str | None:
    """Return what to install for ``name`` of a kind (``"sinks"``), as pip takes it; None: not ours."""
    for extra, kinds in BROUGHT.items():
        if name.lower() in {known.lower() for known in kinds.get(kind, ())}:
            return f"waltap[{extra}]"
    return None
