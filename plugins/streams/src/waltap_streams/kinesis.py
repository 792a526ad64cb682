"""The sink for Amazon Kinesis.

Each record becomes one Kinesis record, with its key as partition key.
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from waltap.base.network.retry import RetryBackoff, waiting
from waltap.base.plugin_errors import needing
from waltap.changes.events.event import Record
from waltap.encoders.json.lines import JsonLines
from waltap.errors import SinkError, StopRequested
from waltap.ports.sink.sink import SinkContext
from waltap.ports.source.connector import PreflightCheck
from waltap_streams.delivery import AcknowledgedSink, StreamServer
from waltap_streams.errors import (
    StreamFull,
    StreamMissing,
    StreamRefused,
    StreamUnavailable,
    StreamUnfit,
)
from waltap_streams.properties import KinesisProperties

RIGHTS: Final = "kinesis:PutRecords, kinesis:ListStreams for the check, and the key of the stream"
# Beginnings of error codes: the service appends Exception, Token and the like.
# They concern the records or the name of their stream; all others concern the request.
UNFIT: Final = ("413", "InvalidArgument", "RequestEntityTooLarge", "Validation")
PASSING: Final = ("RequestAborted", "RequestTimeout")
QUOTAS: Final = ("ProvisionedThroughputExceeded", "LimitExceeded", "Throttling", "KMSThrottling")
# The remedy for exhausted quotas.
SHARDS: Final = "the number of shards"


class KinesisService(StreamServer[Any]):
    """Hold the service's client; its first call connects."""

    def __init__(self, properties: KinesisProperties) -> None:
        super().__init__(properties.endpoint or f"kinesis.{properties.region}")
        self._properties = properties

    def call(self, name: str, **arguments: Any) -> Any:
        """Call an operation and return its answer. Raises: SinkError, LibraryMissing."""
        client = self.connected()
        with self.failing(str(arguments.get("StreamName", ""))):
            return getattr(client, name)(**arguments)

    def _connect(self) -> Any:
        with needing("the sink kinesis needs boto3", extra="kinesis"):
            import boto3
            from botocore.config import Config
        given, seconds = self._properties, self._properties.timeout_ms / 1000
        settings = Config(
            connect_timeout=seconds, read_timeout=seconds, retries={"max_attempts": 2}
        )
        session = boto3.Session(profile_name=given.profile, region_name=given.region)
        return session.client("kinesis", endpoint_url=given.endpoint, config=settings)

    def meaning(self, error: BaseException, about: str) -> SinkError:
        from botocore import exceptions as their

        location, text = self.location, f"{about}: {error}" if about else str(error)
        login = (their.NoCredentialsError, their.PartialCredentialsError, their.ProfileNotFound)
        if isinstance(error, login):
            return StreamRefused(text, location=location, rights=RIGHTS)
        if isinstance(error, their.ClientError):
            code = error.response.get("Error", {}).get("Code", "")
            if code.startswith(QUOTAS):
                return StreamFull(text, location=location, property=SHARDS)
            if code.startswith("ResourceNotFound"):
                how = f"aws kinesis create-stream --stream-name {about}"
                return StreamMissing(text, how=how, property="stream.name.format")
            if code.startswith(UNFIT):
                return StreamUnfit(text, location=location, property="stream.name.format")
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
            if status < 500 and not code.startswith(PASSING):
                return StreamRefused(text, location=location, rights=RIGHTS)
        if isinstance(error, their.ParamValidationError):
            return StreamUnfit(text, location=location, property="stream.name.format")
        return StreamUnavailable(text, location=location)


# Limits of PutRecords: records and bytes of a request, characters of a partition key.
MOST_RECORDS: Final = 500
MOST_BYTES: Final = 4 * 1024 * 1024
LONGEST_KEY: Final = 256

# Stream, partition key, data.
Entry = tuple[str, str, bytes]


class KinesisSink(AcknowledgedSink):
    """Put records in large requests. Delivery is at least once, in order per key."""

    def __init__(self, properties: KinesisProperties, context: SinkContext) -> None:
        self._service = KinesisService(properties)
        super().__init__(self._service.location, context, json_only=properties.body == "line")
        self._properties, self._lines = properties, JsonLines()

    def check(self) -> list[PreflightCheck]:
        """Check that the service accepts the credentials.

        Raises: SinkError, LibraryMissing.
        """
        try:
            self._service.call("list_streams", Limit=1)
        finally:
            self.close()
        return [PreflightCheck.ok("sink kinesis", self._location)]

    def open(self) -> None:
        """Create the client; the first record connects it.

        Raises: SinkError, LibraryMissing.
        """
        self._write_stop.reset()
        self._service.connected()

    def close(self) -> None:
        self._service.close()

    def _send(self, records: Sequence[Record]) -> None:
        for entries in self._requests(records):
            self._put_fitting(entries)

    def _put_fitting(self, entries: list[Entry]) -> None:
        """Put ``entries`` up to the first one that the service never accepts."""
        try:
            self._put(entries)
        except StreamUnfit as error:
            # The limit of a record is the stream's, and the answer names none: halves find it.
            if len(entries) == 1:
                raise self._refusal(error) from error
            middle = len(entries) // 2
            self._put_fitting(entries[:middle])
            self._put_fitting(entries[middle:])
        else:
            self._sent += len(entries)

    def _requests(self, records: Sequence[Record]) -> Iterator[list[Entry]]:
        """Split ``records`` into requests of one stream each.

        No key occurs twice in a request, except the key of records without one.
        """
        entries: list[Entry] = []
        keys: set[str] = set()
        size = 0
        for record in records:
            entry = stream, key, data = self._entry(record)
            full = len(entries) == MOST_RECORDS or size + len(key) + len(data) > MOST_BYTES
            # The service may accept a part of a request. With a key twice, its second record could
            # arrive before its first.
            if entries and (full or entries[0][0] != stream or key in keys):
                yield entries
                entries, keys, size = [], set(), 0
            entries.append(entry)
            size += len(key) + len(data)
            if record.key is not None:
                keys.add(key)
        if entries:
            yield entries

    def _entry(self, record: Record) -> Entry:
        given = self._properties
        key = given.null_key
        if record.key is not None:
            text = record.key.decode(errors="replace")
            # A hash keeps long keys apart and each in its shard.
            key = text if 0 < len(text) <= LONGEST_KEY else hashlib.sha256(record.key).hexdigest()
        data = self._lines.line(record) if given.body == "line" else record.value or b""
        return given.stream.replace("{topic}", record.topic), key, data

    def _put(self, entries: list[Entry]) -> None:
        """Put ``entries`` until their shards have accepted all."""
        until = time.monotonic() + self._properties.retry_ms / 1000
        waits = RetryBackoff(waiting(self._context.stopping), first_s=0.1, ceiling_s=5.0)
        while True:
            stream = entries[0][0]
            records = [{"PartitionKey": key, "Data": data} for _, key, data in entries]
            answer = self._service.call("put_records", StreamName=stream, Records=records)
            refused = [
                (entry, result)
                for entry, result in zip(entries, answer["Records"], strict=True)
                if result.get("ErrorCode")
            ]
            if not refused:
                return
            # Send the refused records before any later record, which keeps the order of keys.
            entries = [entry for entry, _ in refused]
            refusal = refused[0][1]
            if time.monotonic() >= until:
                raise StreamFull(
                    f"{stream}: {refusal['ErrorCode']}: {refusal.get('ErrorMessage', '')}",
                    location=self._location,
                    property=SHARDS,
                )
            if not waits.wait():
                raise StopRequested
