"""Properties of an object store, shared by all components with files."""

from pydantic import field_validator

from waltap.base.property import Maybe, Positive, Properties, Switch, declare
from waltap.base.redaction import whole_address


class StorageProperties(Properties):
    """Address of an object store, and the credentials for it.

    The environment supplies missing ones, as for other programs: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL,
    ~/.aws, roles, GOOGLE_APPLICATION_CREDENTIALS.
    """

    storage_endpoint: Maybe[str] = declare(
        "storage.endpoint",
        summary="Address of an object store that is not Amazon's, Google's or Microsoft's own.",
        examples=("http://127.0.0.1:9000",),
    )
    storage_region: Maybe[str] = declare(
        "storage.region",
        summary="Region of an S3 bucket; without one it is looked up.",
        examples=("eu-central-1",),
    )
    storage_access_key: Maybe[str] = declare(
        "storage.access.key", summary="Access key id (S3), or account name (Azure)."
    )
    storage_secret_key: Maybe[str] = declare(
        "storage.secret.key",
        secret=True,
        summary="Secret access key (S3), or account key (Azure).",
    )
    storage_session_token: Maybe[str] = declare(
        "storage.session.token",
        secret=True,
        summary="Session token of temporary credentials (S3), or SAS token (Azure).",
    )
    storage_role: Maybe[str] = declare(
        "storage.role.arn",
        summary="Role that is assumed, and renewed in time (S3).",
    )
    storage_anonymous: Switch = declare(
        "storage.anonymous",
        summary="Whether requests are not signed: for public stores (S3, GCS).",
    )
    storage_attempts: Positive = declare(
        "storage.max.attempts",
        default=5,
        summary="Attempts of one request (S3). When all have failed, the pipeline reconnects.",
    )
    storage_connect_ms: Positive = declare(
        "storage.connect.timeout.ms",
        default=5000,
        summary="How long the store may take to accept a connection (S3).",
    )

    _full_address = field_validator("storage_endpoint")(whole_address)
