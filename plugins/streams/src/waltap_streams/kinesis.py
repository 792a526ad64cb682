"""Amazon Kinesis: a record for each record, with the key as partition key."""

import hashlib
import random
import time
from collections.abc import Iterator, Sequence
from http import HTTPStatus
from typing import Any, Final

from waltap.errors import SinkError
from waltap.format.record import Record
from waltap.json.lines import JsonLines
from waltap.plugin_errors import LibraryMissing
from waltap.sink.sink import SinkContext
from waltap.source.connector import Check, StopRequested
from waltap_streams.delivery import AcknowledgedSink
from waltap_streams.errors import (
    StreamFull,
    StreamMissing,
    StreamRefused,
    StreamUnavailable,
    StreamUnfit,
)
from waltap_streams.properties import KinesisProperties

__all__ = ["KinesisSink"]

MOST_RECORDS: Final = 500
MOST_BYTES: Final = 4 * 1024 * 1024
LONGEST_KEY: Final = 256
"""What one request, and one partition key, may have."""
RIGHTS: Final = "kinesis:PutRecords, and kinesis:ListStreams for the check"
REFUSALS: Final = (
    "AccessDenied",
    "ExpiredToken",
    "IncompleteSignature",
    "InvalidClientTokenId",
    "InvalidSignature",
    "MissingAuthentication",
    "OptInRequired",
    "UnrecognizedClient",
)
QUOTAS: Final = ("ProvisionedThroughputExceeded", "LimitExceeded", "Throttling", "KMSThrottling")

Entry = tuple[str, str, bytes]
"""Stream, partition key, data."""


class KinesisSink(AcknowledgedSink):
    """Puts records, many a request. At least once, in order per key.

    A request may be taken in part. So no key is in one request twice, and what a shard refused is
    sent again before anything that comes behind it.
    """

    def __init__(self, properties: KinesisProperties, context: SinkContext) -> None:
        place = properties.endpoint or f"kinesis.{properties.region}"
        super().__init__(place, context, json_only=properties.body == "line")
        self._properties, self._lines = properties, JsonLines()
        self._client: Any = None

    def check(self) -> list[Check]:
        """Look whether the service knows us. Raises: SinkError, LibraryMissing."""
        try:
            self._call("list_streams", Limit=1)
        finally:
            self.close()
        return [Check(name="sink kinesis", verdict="ok", found=self._place)]

    def open(self) -> None:
        """Make the client; the first record makes the connection. Raises: SinkError, LibraryMissing."""
        self._gap.reset()
        self._connected()

    def close(self) -> None:
        """Let go of the connections; may be called twice."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _send(self, records: Sequence[Record]) -> None:
        for entries in self._requests(records):
            self._put(entries)
            self._acknowledged(len(entries))

    def _requests(self, records: Sequence[Record]) -> Iterator[list[Entry]]:
        """Cut ``records`` into requests: of one stream each, no key twice but that of records without."""
        entries: list[Entry] = []
        keys: set[str] = set()
        size = 0
        for record in records:
            entry = stream, key, data = self._entry(record)
            full = len(entries) == MOST_RECORDS or size + len(key) + len(data) > MOST_BYTES
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
            key = text if 0 < len(text) <= LONGEST_KEY else hashlib.sha256(record.key).hexdigest()
        data = self._lines.line(record) if given.body == "line" else record.value or b""
        return given.stream.replace("{topic}", record.topic), key, data

    def _put(self, entries: list[Entry]) -> None:
        """Put ``entries``, those that a shard refuses again and again until it has them."""
        until, wait = time.monotonic() + self._properties.retry_ms / 1000, 0.1
        while True:
            stream = entries[0][0]
            records = [{"PartitionKey": key, "Data": data} for _, key, data in entries]
            answer = self._call("put_records", StreamName=stream, Records=records)
            refused = [
                (entry, result)
                for entry, result in zip(entries, answer["Records"], strict=True)
                if result.get("ErrorCode")
            ]
            if not refused:
                return
            entries = [entry for entry, _ in refused]
            told = refused[0][1]
            if time.monotonic() >= until:
                text = f"{stream}: {told['ErrorCode']}: {told.get('ErrorMessage', '')}"
                raise StreamFull(text, place=self._place, property="the number of shards")
            if self._context.stopping():
                raise StopRequested
            time.sleep(wait * random.uniform(0.8, 1.2))  # noqa: S311 - no secret
            wait = min(wait * 2, 5.0)

    def _connected(self) -> Any:
        if self._client is None:
            try:
                import boto3
                from botocore.config import Config
            except ImportError as cause:
                raise LibraryMissing("the sink kinesis needs boto3", extra="kinesis") from cause
            given, seconds = self._properties, self._properties.timeout_ms / 1000
            settings = Config(
                connect_timeout=seconds, read_timeout=seconds, retries={"max_attempts": 2}
            )
            try:
                session = boto3.Session(profile_name=given.profile, region_name=given.region)
                self._client = session.client(
                    "kinesis", endpoint_url=given.endpoint, config=settings
                )
            except Exception as error:
                raise self._failure(error) from error
        return self._client

    def _call(self, name: str, **arguments: Any) -> Any:
        client = self._connected()
        try:
            return getattr(client, name)(**arguments)
        except Exception as error:
            raise self._failure(error, str(arguments.get("StreamName", ""))) from error

    def _failure(self, error: Exception, stream: str = "") -> SinkError:
        from botocore import exceptions as their

        place, text = self._place, f"{stream}: {error}" if stream else str(error)
        login = (their.NoCredentialsError, their.PartialCredentialsError, their.ProfileNotFound)
        if isinstance(error, login):
            return StreamRefused(text, place=place, rights=RIGHTS)
        if isinstance(error, their.ClientError):
            code = error.response.get("Error", {}).get("Code", "")
            if code.startswith(REFUSALS):
                return StreamRefused(text, place=place, rights=RIGHTS)
            if code.startswith("ResourceNotFound"):
                how = f"aws kinesis create-stream --stream-name {stream}"
                return StreamMissing(text, how=how, property="stream.name.format")
            if code.startswith(QUOTAS):
                return StreamFull(text, place=place, property="the number of shards")
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
            if status < HTTPStatus.INTERNAL_SERVER_ERROR:
                return StreamUnfit(text, place=place, property="stream.name.format")
            return StreamUnavailable(text, place=place)
        if isinstance(error, their.ParamValidationError):
            return StreamUnfit(text, place=place, property="stream.name.format")
        return StreamUnavailable(text, place=place)
