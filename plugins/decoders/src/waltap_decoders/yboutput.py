"""yboutput: YugabyteDB's output plugin on pgoutput's wire.

Differences from pgoutput: the replica identity letter ``c`` (CHANGE) exists. The tag ``u`` means
"not sent" for columns of every type. An update's key-only old tuple, which older servers send,
carries no information and is dropped: it is all ``u`` under CHANGE and all ``n`` under DEFAULT.
TRUNCATE, logical messages, in-progress and prepared transactions are never sent.

Source: yugabyte-db, src/postgres/src/backend/replication (proto.c, pgoutput.c); its
TestPgReplicationSlot.java for the two generations of old tuples; Debezium's fork for YugabyteDB,
which makes the same columns optional whatever NOT NULL says.
"""

from dataclasses import replace
from typing import ClassVar

import msgspec

from waltap.base.property import Positive, Properties, declare
from waltap.changes.decode.decoder import DecoderCapabilities, DecoderContext
from waltap.changes.decode.relation import Relation
from waltap_decoders.capabilities import YBOUTPUT
from waltap_decoders.pgoutput.decoder import PgOutput
from waltap_decoders.pgoutput.properties import PgOutputProperties, negotiate


class YbOutputProperties(Properties):
    """Requests to yboutput."""

    proto_version: Positive = declare(
        "yboutput.proto_version",
        default=1,
        le=3,
        summary="Protocol version to ask for; nothing that waltap uses needs more than 1.",
    )


class YbOutput(PgOutput):
    """Decode yboutput. State and errors are as in `PgOutput`."""

    name = "yboutput"
    identities: ClassVar[str] = "dnfic"
    old_keys_of_updates: ClassVar[bool] = False
    can_carry: ClassVar[DecoderCapabilities] = YBOUTPUT

    def __init__(self, context: DecoderContext) -> None:
        describe = context.describe
        if describe is not None:
            context = replace(context, describe=lambda relation: _described(describe(relation)))
        super().__init__(context)

    def _negotiate(self, context: DecoderContext) -> dict[str, str]:
        asked = YbOutputProperties.model_validate(dict(context.options))
        properties = PgOutputProperties(proto_version=asked.proto_version, messages=False)
        return negotiate(properties, context.server, context.publications, protocol_limit=3)


def _described(relation: Relation) -> Relation:
    """Make columns outside the key nullable without default."""
    # Under CHANGE any update or delete may lack a column outside the key. A format that writes the
    # default for NULL must not write it for a value that was not sent.
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
