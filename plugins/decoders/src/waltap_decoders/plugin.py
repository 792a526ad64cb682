"""Hook implementations of this distribution, and nothing else."""

from collections.abc import Iterable

from waltap.hookspecs import hookimpl
from waltap.specs import DecoderSpec
from waltap_decoders import pgoutput, yboutput

WALTAP_API = 1


@hookimpl
def register_decoders() -> Iterable[DecoderSpec]:
    """Contribute the decoders of this distribution."""
    return [
        DecoderSpec(
            name="pgoutput",
            summary="PostgreSQL's own output plugin, protocols 1 to 4, text or binary.",
            properties=pgoutput.PgOutputProperties,
            factory=pgoutput.PgOutput,
            output_plugin="pgoutput",
            capabilities=pgoutput.CAPABILITIES,
        ),
        DecoderSpec(
            name="yboutput",
            summary="YugabyteDB's output plugin: pgoutput's wire, with identity CHANGE.",
            properties=yboutput.YbOutputProperties,
            factory=yboutput.YbOutput,
            output_plugin="yboutput",
            capabilities=yboutput.CAPABILITIES,
        ),
    ]
