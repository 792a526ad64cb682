"""Access to Amazon Kinesis by boto3, and the meaning of its errors."""

from http import HTTPStatus
from typing import Any, Final

from waltap.errors import SinkError
from waltap.plugin_errors import LibraryMissing
from waltap_streams.errors import (
    StreamFull,
    StreamMissing,
    StreamRefused,
    StreamUnavailable,
    StreamUnfit,
)
from waltap_streams.properties import KinesisProperties
from waltap_streams.server import StreamServer

__all__ = ["SHARDS", "KinesisService"]

RIGHTS: Final = "kinesis:PutRecords, and kinesis:ListStreams for the check"
# Beginnings of error codes: the service appends Exception, Token and the like.
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
# The remedy for exhausted quotas.
SHARDS: Final = "the number of shards"


class KinesisService(StreamServer[Any]):
    """Hold the service's client; its first call connects."""

    def __init__(self, properties: KinesisProperties) -> None:
        super().__init__(properties.endpoint or f"kinesis.{properties.region}")
        self._properties = properties

    def call(self, name: str, **arguments: Any) -> Any:
        """Call an operation and return its answer.

        Raises: SinkError, LibraryMissing.
        """
        client = self.connected()
        with self.failing(str(arguments.get("StreamName", ""))):
            return getattr(client, name)(**arguments)

    def _connect(self) -> Any:
        try:
            import boto3
            from botocore.config import Config
        except ImportError as cause:
            raise LibraryMissing("the sink kinesis needs boto3", extra="kinesis") from cause
        given, seconds = self._properties, self._properties.timeout_ms / 1000
        settings = Config(
            connect_timeout=seconds, read_timeout=seconds, retries={"max_attempts": 2}
        )
        session = boto3.Session(profile_name=given.profile, region_name=given.region)
        return session.client("kinesis", endpoint_url=given.endpoint, config=settings)

    def _let_go(self, client: Any) -> None:
        client.close()

    def _meaning(self, error: BaseException, about: str) -> SinkError:
        from botocore import exceptions as their

        place, text = self.place, f"{about}: {error}" if about else str(error)
        login = (their.NoCredentialsError, their.PartialCredentialsError, their.ProfileNotFound)
        if isinstance(error, login):
            return StreamRefused(text, place=place, rights=RIGHTS)
        if isinstance(error, their.ClientError):
            code = error.response.get("Error", {}).get("Code", "")
            if code.startswith(REFUSALS):
                return StreamRefused(text, place=place, rights=RIGHTS)
            if code.startswith("ResourceNotFound"):
                how = f"aws kinesis create-stream --stream-name {about}"
                return StreamMissing(text, how=how, property="stream.name.format")
            if code.startswith(QUOTAS):
                return StreamFull(text, place=place, property=SHARDS)
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
            if status < HTTPStatus.INTERNAL_SERVER_ERROR:
                return StreamUnfit(text, place=place, property="stream.name.format")
            return StreamUnavailable(text, place=place)
        if isinstance(error, their.ParamValidationError):
            return StreamUnfit(text, place=place, property="stream.name.format")
        return StreamUnavailable(text, place=place)
