"""Hook implementations of this distribution, and nothing else."""

from collections.abc import Iterable
from dataclasses import replace

from waltap.hookspecs import hookimpl
from waltap.specs import DecoderSpec

WALTAP_API = 1


@hookimpl
def register_decoders() -> Iterable[DecoderSpec]:
    """Contribute the decoders of this distribution."""
    from waltap_decoders import decoderbufs, pgoutput, remarks, wal2json, yboutput

    return [
        DecoderSpec(
            name="pgoutput",
            summary="PostgreSQL's own output plugin, protocols 1 to 4, text or binary.",
            properties=pgoutput.PgOutputProperties,
            factory=pgoutput.PgOutput,
            output_plugin="pgoutput",
            capabilities=pgoutput.CAPABILITIES,
            remarks=remarks.PGOUTPUT,
        ),
        DecoderSpec(
            name="yboutput",
            summary="YugabyteDB's output plugin: pgoutput's wire, with identity CHANGE.",
            properties=yboutput.YbOutputProperties,
            factory=yboutput.YbOutput,
            output_plugin="yboutput",
            capabilities=yboutput.CAPABILITIES,
            remarks=remarks.YBOUTPUT,
        ),
        DecoderSpec(
            name="wal2json",
            aliases=("wal2json_rds",),
            summary="JSON text of the wal2json plugin, format 2 or 1.",
            properties=wal2json.Wal2JsonProperties,
            factory=wal2json.Wal2Json,
            output_plugin="wal2json",
            capabilities=wal2json.CAPABILITIES,
            remarks=remarks.WAL2JSON,
        ),
        DecoderSpec(
            name="wal2json_streaming",
            aliases=("wal2json_rds_streaming",),
            summary="wal2json format 1 in chunks, as old Debezium profiles name it.",
            properties=wal2json.Wal2JsonProperties,
            factory=wal2json.Wal2Json,
            output_plugin="wal2json",
            capabilities=replace(wal2json.CAPABILITIES, truncate=False),
            remarks=remarks.WAL2JSON,
            forced_options={"wal2json.format-version": "1", "wal2json.write-in-chunks": True},
        ),
        DecoderSpec(
            name="decoderbufs",
            summary="Protobuf messages of the decoderbufs plugin.",
            factory=decoderbufs.DecoderBufs,
            output_plugin="decoderbufs",
            capabilities=decoderbufs.CAPABILITIES,
            remarks=remarks.DECODERBUFS,
        ),
    ]
