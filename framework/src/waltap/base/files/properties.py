"""Properties of an object store, shared by all components with files."""

from waltap.base.property import Positive, Properties, declare


class StorageProperties(Properties):
    """Address of an object store, and the credentials for it.

    The environment supplies missing ones, as for other programs: AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL,
    ~/.aws, roles, GOOGLE_APPLICATION_CREDENTIALS.
    """

    storage_endpoint: str | None = declare(
        "storage.endpoint",
        default=None,
        summary="Address of an object store that is not Amazon's, Google's or Microsoft's own.",
        examples=("http://127.0.0.1:9000",),
    )
    storage_region: str | None = declare(
        "storage.region",
        default=None,
        summary="Region of an S3 bucket; without one it is looked up.",
        examples=("eu-central-1",),
    )
    storage_access_key: str | None = declare(
        "storage.access.key", default=None, summary="Access key id (S3), or account name (Azure)."
    )
    storage_secret_key: str | None = declare(
        "storage.secret.key",
        default=None,
        secret=True,
        summary="Secret access key (S3), or account key (Azure).",
    )
    storage_session_token: str | None = declare(
        "storage.session.token",
        default=None,
        secret=True,
        summary="Session token of temporary credentials (S3), or SAS token (Azure).",
    )
    storage_role: str | None = declare(
        "storage.role.arn",
        default=None,
        summary="Role that is assumed, and renewed in time (S3).",
    )
    storage_anonymous: bool = declare(
        "storage.anonymous",
        default=False,
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
