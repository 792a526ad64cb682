"""yboutput: YugabyteDB's output plugin, which speaks pgoutput's wire.

What differs: the replica identity letter ``c`` (CHANGE); the mark ``u`` means "not sent" for columns
of every type; an update's key-only old tuple, which older servers send, says nothing and is left out
(it is all ``u`` under CHANGE and all ``n`` under DEFAULT). TRUNCATE, logical messages, in-progress
and prepared transactions are never sent.

Source: yugabyte-db, src/postgres/src/backend/replication (proto.c, pgoutput.c); its
TestPgReplicationSlot.java for the two generations of old tuples.
"""

from dataclasses import replace
from typing import ClassVar

from waltap.config.property import Properties, declare
from waltap.decode.decoder import DecoderCapabilities, DecoderContext
from waltap_decoders.pgoutput.decoder import CAPABILITIES as PGOUTPUT_CAPABILITIES
from waltap_decoders.pgoutput.decoder import PgOutput
from waltap_decoders.pgoutput.properties import PgOutputProperties, negotiate

__all__ = ["CAPABILITIES", "YbOutput", "YbOutputProperties"]

CAPABILITIES = replace(
    PGOUTPUT_CAPABILITIES,
    truncate=False,
    logical_messages=False,
    origin=False,
    streaming=False,
    two_phase=False,
)
"""What yboutput can carry."""


class YbOutputProperties(Properties):
    """What yboutput is asked for."""

    proto_version: int = declare(
        "yboutput.proto_version",
        default=1,
        ge=1,
        le=3,
        summary="Protocol version to ask for; nothing that waltap uses needs more than 1.",
        advanced=True,
    )
    binary: bool = declare(
        "yboutput.binary",
        default=False,
        summary="Ask for values in binary send format (releases based on PostgreSQL 15).",
    )


class YbOutput(PgOutput):
    """Decodes yboutput; state and errors as in `PgOutput`."""

    name = "yboutput"
    identities: ClassVar[str] = "dnfic"
    old_keys_of_updates: ClassVar[bool] = False
    can_carry: ClassVar[DecoderCapabilities] = CAPABILITIES

    def _negotiate(self, context: DecoderContext) -> dict[str, str]:
        asked = YbOutputProperties.model_validate(dict(context.options))
        properties = PgOutputProperties(
            proto_version=asked.proto_version, binary=asked.binary, messages=False
        )
        return negotiate(properties, context.server, context.publications, protocol_limit=3)
