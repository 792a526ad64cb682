"""Hook implementations of this distribution."""

from collections.abc import Iterable
from dataclasses import replace

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import DecoderSpec, lazy

WALTAP_API = 1


@hookimpl
def register_decoders() -> Iterable[DecoderSpec]:
    """Contribute the decoders of this distribution."""
    from waltap_decoders import capabilities

    return [
        DecoderSpec(
            name="pgoutput",
            summary="PostgreSQL's own output plugin, protocols 1 to 4.",
            properties=lazy("waltap_decoders.pgoutput.properties:PgOutputProperties"),
            factory=lazy("waltap_decoders.pgoutput:PgOutput"),
            output_plugin="pgoutput",
            capabilities=capabilities.PGOUTPUT,
            remarks=capabilities.PGOUTPUT_REMARKS,
        ),
        DecoderSpec(
            name="yboutput",
            summary="YugabyteDB's output plugin: pgoutput's wire, with identity CHANGE.",
            properties=lazy("waltap_decoders.yboutput:YbOutputProperties"),
            factory=lazy("waltap_decoders.yboutput:YbOutput"),
            output_plugin="yboutput",
            capabilities=capabilities.YBOUTPUT,
            remarks=capabilities.YBOUTPUT_REMARKS,
        ),
        DecoderSpec(
            name="wal2json",
            aliases=("wal2json_rds",),
            summary="JSON text of the wal2json plugin, format 2 or 1.",
            properties=lazy("waltap_decoders.wal2json.properties:Wal2JsonProperties"),
            factory=lazy("waltap_decoders.wal2json:Wal2Json"),
            output_plugin="wal2json",
            capabilities=capabilities.WAL2JSON,
            remarks=capabilities.WAL2JSON_REMARKS,
        ),
        DecoderSpec(
            name="wal2json_streaming",
            aliases=("wal2json_rds_streaming",),
            summary="wal2json format 1 in chunks, as old Debezium profiles name it.",
            properties=lazy("waltap_decoders.wal2json.properties:Wal2JsonProperties"),
            factory=lazy("waltap_decoders.wal2json:Wal2Json"),
            output_plugin="wal2json",
            capabilities=replace(capabilities.WAL2JSON, truncate=False),
            remarks=capabilities.WAL2JSON_REMARKS,
            forced_options={"wal2json.format-version": "1", "wal2json.write-in-chunks": True},
        ),
        DecoderSpec(
            name="decoderbufs",
            summary="Protobuf messages of the decoderbufs plugin.",
            factory=lazy("waltap_decoders.decoderbufs:DecoderBufs"),
            output_plugin="decoderbufs",
            capabilities=capabilities.DECODERBUFS,
            remarks=capabilities.DECODERBUFS_REMARKS,
        ),
    ]
