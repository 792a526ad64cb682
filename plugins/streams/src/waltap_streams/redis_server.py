"""Access to a Redis server, its errors, and the form of an entry."""

from typing import TYPE_CHECKING, Final

from waltap.errors import SinkError
from waltap.format.record import Record
from waltap.plugin_errors import LibraryMissing
from waltap_streams.errors import StreamFull, StreamRefused, StreamUnavailable, StreamUnfit
from waltap_streams.properties import RedisProperties
from waltap_streams.server import StreamServer

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["RedisServer", "entry"]

RIGHTS: Final = "XADD and INFO; with exactly_once GET, SET, WATCH, MULTI and EXEC as well"
# Words of Redis error texts, which begin with the kind of error.
FULL: Final = ("MISCONF", "OOM")
REFUSED: Final = ("NOAUTH", "WRONGPASS", "NOPERM")
AWAY: Final = ("LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN")

Field = str | bytes


class RedisServer(StreamServer["Redis"]):
    """Hold one connection, opened at its first use."""

    def __init__(self, properties: RedisProperties) -> None:
        super().__init__(properties.address)
        self._properties = properties

    def _connect(self) -> "Redis":
        try:
            from redis import Redis
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as cause:
            raise LibraryMissing("the sink redis needs redis", extra="redis") from cause
        given = self._properties
        host, _, port = given.address.rpartition(":")
        if not port.isdigit() or not host:
            host, port = given.address, "6379"
        timeout = given.timeout_ms / 1000
        return Redis(
            host=host.strip("[]"),
            port=int(port),
            db=given.db_index,
            username=given.user,
            password=given.password,
            ssl=given.ssl,
            ssl_ca_certs=given.ssl_ca,
            socket_timeout=timeout,
            socket_connect_timeout=timeout,
            retry=Retry(NoBackoff(), 0),  # an unanswered command may have been executed
        )

    def _let_go(self, client: "Redis") -> None:
        client.close()

    def _meaning(self, error: BaseException, about: str) -> SinkError | None:
        import redis

        place, text = self.place, str(error)
        full = {"place": place, "property": "stream.max.entries"}
        if isinstance(error, (redis.AuthenticationError, redis.exceptions.NoPermissionError)):
            return StreamRefused(text, place=place, rights=RIGHTS)
        if any(word in text for word in REFUSED):
            return StreamRefused(text, place=place, rights=RIGHTS)
        if isinstance(error, redis.exceptions.OutOfMemoryError):
            return StreamFull(text, **full)
        if any(word in text for word in FULL):
            return StreamFull(text, **full)
        gone = (redis.ConnectionError, redis.TimeoutError)
        if isinstance(error, gone) or any(word in text for word in AWAY):
            return StreamUnavailable(f"{place}: {text}", place=place)
        if isinstance(error, redis.RedisError):
            return StreamUnfit(text, place=place, property="the topic")
        return None


def entry(record: Record, properties: RedisProperties) -> dict[Field, Field]:
    """Return the fields of the entry of ``record``."""
    if properties.message_format == "compact":
        key = properties.null_key if record.key is None else record.key
        return {key: properties.null_value if record.value is None else record.value}
    fields: dict[Field, Field] = {}
    if record.key is not None:
        fields["key"] = record.key
    if record.value is not None:
        fields["value"] = record.value
    for name, value in record.headers:
        fields[f"header.{name}"] = value
    return fields or {"value": b""}  # an entry needs at least one field
