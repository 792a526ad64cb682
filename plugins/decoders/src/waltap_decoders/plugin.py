"""Hook implementations of this distribution, and nothing else."""

from collections.abc import Iterable

from waltap.hookspecs import hookimpl
from waltap.specs import DecoderSpec
from waltap_decoders.pgoutput import CAPABILITIES, PgOutput, PgOutputProperties

WALTAP_API = 1


@hookimpl
def register_decoders() -> Iterable[DecoderSpec]:
    """Contribute the decoders of this distribution."""
    return [
        DecoderSpec(
            name="pgoutput",
            summary="PostgreSQL's own output plugin, protocols 1 to 4, text or binary.",
            properties=PgOutputProperties,
            factory=PgOutput,
            output_plugin="pgoutput",
            capabilities=CAPABILITIES,
        )
    ]
