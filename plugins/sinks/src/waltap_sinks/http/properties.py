"""Properties of the sink http."""

from typing import Literal, Self

from pydantic import field_validator, model_validator

from waltap.base.property import Maybe, Positive, Properties, Switch, Whole, declare, declare_family
from waltap.base.redaction import header_value, header_values, whole_address


class HttpProperties(Properties):
    """The address of records, their form, and the login."""

    url: str = declare(
        "url",
        pattern=r"^[hH][tT][tT][pP][sS]?://[^\s/?#]+\S*$",
        secret=True,
        summary="Address that records are posted to. No message shows more of it than the host.",
        examples=("https://ingest.example.com/changes",),
    )
    body: Literal["record", "lines", "array", "cloudevents"] = declare(
        "body",
        default="record",
        summary="Content of one request: the value of one record, with key and headers in HTTP "
        "headers; JSON lines of records with topic, key, value and headers; the same as a "
        "JSON array; or a batch of structured CloudEvents (format cloudevents).",
    )
    batch_records: Positive = declare(
        "batch.size",
        default=500,
        summary="Most records of one request, where it holds several.",
        unit="records",
    )
    batch_bytes: Positive = declare(
        "batch.max.bytes",
        default=1024 * 1024,
        summary="Largest body of a request that holds several records; a larger record goes alone.",
    )
    concurrency: Positive = declare(
        "concurrency",
        default=1,
        le=256,
        summary="How many requests may run at a time. Records of one key stay in order; with 1, "
        "all do.",
    )
    tombstones: Switch = declare(
        "tombstones",
        summary="Whether tombstones are sent, with an empty body or null; else they are left out.",
    )
    timeout_ms: Positive = declare(
        "timeout.ms",
        default=60_000,
        le=2**31 - 1,
        summary="How long one try may take, from the connection to the end of the answer.",
    )
    retry_ms: Positive = declare(
        "retry.interval.ms",
        default=500,
        summary="First wait before a request is repeated; later ones double, up to 30 s. A "
        "longer Retry-After of the server is respected.",
    )
    retry_total_ms: Whole = declare(
        "retry.timeout.ms",
        default=300_000,
        summary="How long a request is tried before the failure is reported; the engine then continues as "
        "errors.max.retries says.",
    )
    headers: dict[str, str] = declare_family(
        "header.NAME",
        pattern=r"header\.[A-Za-z0-9!#$%&'*+.^_`|~-]+",
        summary="A header of every request. It may be a key: its value is not shown.",
        secret=True,
    )
    prefix: str = declare(
        "headers.prefix",
        default="X-DEBEZIUM-",
        pattern="[A-Za-z0-9_-]*",
        summary="Prefix of the names of a record's headers, TOPIC and KEY, with body=record. "
        "Headers of binary CloudEvents keep the names of their HTTP binding.",
    )
    encode: bool = declare(
        "headers.encode.base64",
        default=True,
        summary="Whether key and headers of a record are sent as base64, which every value survives.",
    )
    user: Maybe[str] = declare(
        "auth.user", summary="User of basic authentication; auth.password is the password."
    )
    password: Maybe[str] = declare(
        "auth.password", secret=True, summary="Password of basic authentication."
    )
    token: Maybe[str] = declare(
        "auth.token", secret=True, summary="Token of bearer authentication."
    )
    oauth_url: Maybe[str] = declare(
        "auth.oauth2.token.url",
        pattern=r"^[hH][tT][tT][pP][sS]?://[^\s/?#]+\S*$",
        summary="Address that gives tokens for client credentials (OAuth 2.0).",
    )
    oauth_client: Maybe[str] = declare("auth.oauth2.client.id", summary="Client of OAuth 2.0.")
    oauth_secret: Maybe[str] = declare(
        "auth.oauth2.client.secret", secret=True, summary="Its secret."
    )
    oauth_scope: Maybe[str] = declare(
        "auth.oauth2.scope", summary="Scope to ask for; words with blanks between."
    )
    signing_secret: Maybe[str] = declare(
        "signature.secret",
        min_length=1,
        secret=True,
        summary="Key of the HMAC-SHA256 in the header webhook-signature, by Standard Webhooks: "
        "any text, or whsec_ and base64; empty: no signature.",
    )
    ssl_ca: Maybe[str] = declare(
        "ssl.ca",
        path=True,
        summary="File of the certificates to trust; by default those that Python's certifi knows.",
    )
    ssl_certificate: Maybe[str] = declare(
        "ssl.certificate", path=True, summary="File of the client's own certificate."
    )
    ssl_key: Maybe[str] = declare(
        "ssl.key", path=True, summary="File of its key, where that is another."
    )

    _full_address = field_validator("url", "oauth_url")(whole_address)
    _of_header = field_validator("token")(header_value)
    _of_headers = field_validator("headers")(header_values)

    @model_validator(mode="after")
    def _one_login(self) -> Self:
        ways = {
            "auth.user": self.user,
            "auth.token": self.token,
            "auth.oauth2.token.url": self.oauth_url,
        }
        given = [name for name, value in ways.items() if value is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are two ways to log in: give one")
        if self.oauth_url is not None and None in (self.oauth_client, self.oauth_secret):
            raise ValueError(
                "auth.oauth2.token.url needs auth.oauth2.client.id and auth.oauth2.client.secret"
            )
        return self
