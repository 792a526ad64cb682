"""Hook implementations of this distribution."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from waltap.plugins.hookspecs import hookimpl
from waltap.ports.specs import DecoderSpec

if TYPE_CHECKING:
    from waltap.changes.decode.decoder import Decoder, DecoderContext

WALTAP_API = 1


# The factories import their decoder, so that a run loads only the one that it uses.
def _wal2json(context: "DecoderContext") -> "Decoder":
    from waltap_decoders.wal2json import Wal2Json

    return Wal2Json(context)


def _decoderbufs(context: "DecoderContext") -> "Decoder":
    from waltap_decoders.decoderbufs import DecoderBufs

    return DecoderBufs(context)


@hookimpl
def register_decoders() -> Iterable[DecoderSpec]:
    """Contribute the decoders of this distribution."""
    from waltap_decoders import capabilities, pgoutput, yboutput
    from waltap_decoders.wal2json.properties import Wal2JsonProperties

    return [
        DecoderSpec(
            name="pgoutput",
            summary="PostgreSQL's own output plugin, protocols 1 to 4.",
            properties=pgoutput.PgOutputProperties,
            factory=pgoutput.PgOutput,
            output_plugin="pgoutput",
            capabilities=pgoutput.CAPABILITIES,
            remarks=capabilities.PGOUTPUT_REMARKS,
        ),
        DecoderSpec(
            name="yboutput",
            summary="YugabyteDB's output plugin: pgoutput's wire, with identity CHANGE.",
            properties=yboutput.YbOutputProperties,
            factory=yboutput.YbOutput,
            output_plugin="yboutput",
            capabilities=yboutput.CAPABILITIES,
            remarks=capabilities.YBOUTPUT_REMARKS,
        ),
        DecoderSpec(
            name="wal2json",
            aliases=("wal2json_rds",),
            summary="JSON text of the wal2json plugin, format 2 or 1.",
            properties=Wal2JsonProperties,
            factory=_wal2json,
            output_plugin="wal2json",
            capabilities=capabilities.WAL2JSON,
            remarks=capabilities.WAL2JSON_REMARKS,
        ),
        DecoderSpec(
            name="wal2json_streaming",
            aliases=("wal2json_rds_streaming",),
            summary="wal2json format 1 in chunks, as old Debezium profiles name it.",
            properties=Wal2JsonProperties,
            factory=_wal2json,
            output_plugin="wal2json",
            capabilities=replace(capabilities.WAL2JSON, truncate=False),
            remarks=capabilities.WAL2JSON_REMARKS,
            forced_options={"wal2json.format-version": "1", "wal2json.write-in-chunks": True},
        ),
        DecoderSpec(
            name="decoderbufs",
            summary="Protobuf messages of the decoderbufs plugin.",
            factory=_decoderbufs,
            output_plugin="decoderbufs",
            capabilities=capabilities.DECODERBUFS,
            remarks=capabilities.DECODERBUFS_REMARKS,
        ),
    ]
