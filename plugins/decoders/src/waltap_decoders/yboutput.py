"""yboutput: YugabyteDB's output plugin, which speaks pgoutput's wire.

What differs: the replica identity letter ``c`` (CHANGE); the mark ``u`` means "not sent" for columns
of every type; an update's key-only old tuple, which older servers send, says nothing and is left out
(it is all ``u`` under CHANGE and all ``n`` under DEFAULT). TRUNCATE, logical messages, in-progress
and prepared transactions are never sent.

Under CHANGE a column outside the key may lack its value in any update or delete, so that relations
are described with such columns nullable and without default: a format that writes the default for
what is null must not write it for what was not sent.

Source: yugabyte-db, src/postgres/src/backend/replication (proto.c, pgoutput.c); its
TestPgReplicationSlot.java for the two generations of old tuples; Debezium's fork for YugabyteDB,
which makes the same columns optional whatever NOT NULL says.
"""

from dataclasses import replace
from typing import ClassVar

import msgspec

from waltap.config.property import Properties, declare
from waltap.decode.decoder import DecoderCapabilities, DecoderContext
from waltap.decode.relation import Relation
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
        summary="Ask for values in binary send format (releases based on PostgreSQL 15); they come as "
        "text where a captured column has a type that can only be read so.",
    )


class YbOutput(PgOutput):
    """Decodes yboutput; state and errors as in `PgOutput`."""

    name = "yboutput"
    identities: ClassVar[str] = "dnfic"
    old_keys_of_updates: ClassVar[bool] = False
    can_carry: ClassVar[DecoderCapabilities] = CAPABILITIES

    def __init__(self, context: DecoderContext) -> None:
        describe = context.describe
        if describe is not None:
            context = replace(context, describe=lambda relation: _described(describe(relation)))
        super().__init__(context)

    def _negotiate(self, context: DecoderContext) -> dict[str, str]:
        asked = YbOutputProperties.model_validate(dict(context.options))
        properties = PgOutputProperties(
            proto_version=asked.proto_version, binary=asked.binary, messages=False
        )
        return negotiate(properties, context.server, context.publications, protocol_limit=3)


def _described(relation: Relation) -> Relation:
    """Return ``relation``, its columns outside the key nullable without default under CHANGE."""
    if relation.identity != "c":
        return relation
    key = relation.primary_key or ()
    columns = tuple(
        column
        if column.in_identity or column.name in key
        else msgspec.structs.replace(column, nullable=True, default=None)
        for column in relation.columns
    )
    return msgspec.structs.replace(relation, columns=columns)
