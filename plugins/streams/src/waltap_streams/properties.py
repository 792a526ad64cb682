"""Properties of the sinks of message streams.

Names are Debezium Server's where the meaning is the same.
"""

from typing import Literal

from pydantic import field_validator

from waltap.base.property import Maybe, MaybeList, Positive, Properties, Switch, Whole, declare
from waltap.base.redaction import whole_address


class RedisProperties(Properties):
    """The Redis server, and the form of its stream entries."""

    address: str = declare(
        "address",
        pattern=r"[^\s/]+",
        summary="Host of the server, and its port (6379).",
        examples=("redis.example.com:6379",),
    )
    db_index: Whole = declare("db.index", default=0, summary="Number of the database.")
    user: Maybe[str] = declare("user", summary="User, of an ACL.")
    password: Maybe[str] = declare("password", secret=True, summary="Its password.")
    ssl: Switch = declare("ssl.enabled", summary="Whether to speak TLS.")
    ssl_ca: Maybe[str] = declare("ssl.ca", path=True, summary="File of the certificates to trust.")
    guarantee: Literal["at_least_once", "exactly_once"] = declare(
        "delivery.guarantee",
        default="at_least_once",
        summary="With exactly_once the entries of a flush and the position are one MULTI "
        "transaction; all streams must then be on one node.",
    )
    batch_records: Positive = declare(
        "batch.size", default=500, summary="Entries that are sent at a time.", unit="records"
    )
    held_records: Positive = declare(
        "transaction.max.records",
        default=100_000,
        summary="Entries of one transaction; what is more is committed before the next flush.",
        unit="records",
    )
    message_format: Literal["extended", "compact"] = declare(
        "message.format",
        default="extended",
        summary="Fields of an entry. extended: key, value, and header.NAME for each header; "
        "missing parts have no field. compact: one field, named by the key; null.key "
        "and null.value replace null.",
    )
    null_key: str = declare(
        "null.key", default="default", summary="Field of a record without key, where compact."
    )
    null_value: str = declare(
        "null.value", default="default", summary="Value of a tombstone, where compact."
    )
    max_entries: Whole = declare(
        "stream.max.entries",
        default=0,
        summary="About how many entries a stream keeps; older ones go. 0: all.",
        unit="entries",
    )
    position_key: str = declare(
        "position.key",
        default="waltap:{pipeline}:position",
        summary="Key of the position, with exactly_once.",
    )
    timeout_ms: Positive = declare(
        "socket.timeout.ms",
        default=10_000,
        le=2**31 - 1,
        aliases=("connection.timeout.ms",),
        summary="How long to wait for a connection, and for an answer.",
    )

    _full_address = field_validator("address")(whole_address)


class NatsProperties(Properties):
    """The NATS server, and the stream of JetStream."""

    url: str = declare(
        "url",
        pattern=r"^(nats|tls)://[^\s,]+(,(nats|tls)://[^\s,]+)*$",
        secret=True,
        summary="Address of the server; several, of one cluster, with commas between.",
        examples=("nats://localhost:4222",),
    )
    create: Switch = declare(
        "create-stream",
        summary="Whether to make the stream, where none takes subjects.",
    )
    stream: str = declare(
        "stream",
        default="waltap",
        pattern=r"[A-Za-z0-9_-]+",
        summary="Name of the stream that is made.",
    )
    subjects: MaybeList = declare(
        "subjects",
        summary="Subjects of the stream that is made; a topic is the subject of its records.",
        examples=("shop.>",),
    )
    storage: Literal["file", "memory"] = declare(
        "storage", default="file", summary="Where the stream that is made keeps messages."
    )
    user: Maybe[str] = declare("auth.user", summary="User.")
    password: Maybe[str] = declare("auth.password", secret=True, summary="Its password.")
    token: Maybe[str] = declare("auth.token", secret=True, summary="Token.")
    credentials: Maybe[str] = declare(
        "auth.credentials",
        path=True,
        summary="File of credentials (.creds); needs nkeys.",
    )
    window: Positive = declare(
        "publish.window",
        default=256,
        summary="Messages that may wait for their acknowledgement at a time.",
        unit="messages",
    )
    timeout_ms: Positive = declare(
        "timeout.ms",
        default=10_000,
        summary="How long to wait for a connection, and for an acknowledgement.",
    )

    @field_validator("url")
    @classmethod
    def _full_addresses(cls, urls: str) -> str:
        return ",".join(whole_address(url) or "" for url in urls.split(","))


class KinesisProperties(Properties):
    """The Kinesis service, and the stream of each record."""

    region: str = declare(
        "region", pattern=r"[a-z0-9-]+", summary="Region.", examples=("eu-central-1",)
    )
    endpoint: Maybe[str] = declare(
        "endpoint",
        pattern=r"^https?://\S+$",
        summary="Address of another service with this interface.",
    )
    profile: Maybe[str] = declare(
        "credentials.profile",
        summary="Profile of ~/.aws to take credentials from; else AWS's usual places count.",
    )
    stream: str = declare(
        "stream.name.format",
        default="{topic}",
        pattern=r"[A-Za-z0-9_.{}-]+",
        summary="Stream of a record; {topic} is its topic. Streams must be there.",
        examples=("changes",),
    )
    body: Literal["value", "line"] = declare(
        "body",
        default="value",
        summary="Content of a Kinesis record: value, the value alone, empty for a tombstone; or "
        "line, a JSON object with topic, key, value and headers.",
    )
    null_key: str = declare(
        "null.key",
        default="default",
        min_length=1,
        summary="Partition key of records without key; their order is kept where none is sent again.",
    )
    retry_ms: Whole = declare(
        "retry.timeout.ms",
        default=60_000,
        summary="How long records that a shard refuses for its quota are sent again.",
    )
    timeout_ms: Positive = declare(
        "timeout.ms",
        default=10_000,
        summary="How long to wait for a connection, and for an answer.",
    )

    _full_address = field_validator("endpoint")(whole_address)
