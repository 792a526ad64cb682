"""Registry properties, named as Confluent's converters name them."""

from typing import Literal
from urllib.parse import urlsplit

from pydantic import field_validator

from waltap.base.property import CommaList, Properties, declare

__all__ = ["RegistryProperties"]

Strategy = Literal[
    "TopicNameStrategy",
    "RecordNameStrategy",
    "TopicRecordNameStrategy",
    "io.confluent.kafka.serializers.subject.TopicNameStrategy",
    "io.confluent.kafka.serializers.subject.RecordNameStrategy",
    "io.confluent.kafka.serializers.subject.TopicRecordNameStrategy",
]


class RegistryProperties(Properties):
    """The schema registry, and registration there."""

    urls: CommaList = declare(
        "schema.registry.url",
        summary="Addresses of the registry; the next is asked where one does not answer.",
        examples=("http://registry:8081", "http://apicurio:8080/apis/ccompat/v7"),
        min_length=1,
    )
    user_info: str | None = declare(
        "basic.auth.user.info",
        default=None,
        secret=True,
        aliases=("schema.registry.basic.auth.user.info",),
        summary="USER:PASSWORD; may also stand in the address.",
    )
    credentials_source: Literal["URL", "USER_INFO"] = declare(
        "basic.auth.credentials.source",
        default="URL",
        summary="Where user and password stand; both places are looked into, whatever it says.",
        advanced=True,
    )
    bearer_token: str | None = declare(
        "bearer.auth.token",
        default=None,
        secret=True,
        summary="Token that is sent as `Authorization: Bearer`.",
    )
    bearer_source: Literal["STATIC_TOKEN"] = declare(
        "bearer.auth.credentials.source",
        default="STATIC_TOKEN",
        summary="Where the token stands.",
        advanced=True,
    )
    ca_file: str | None = declare(
        "schema.registry.ssl.truststore.location",
        default=None,
        aliases=("schema.registry.ssl.ca.location",),
        path=True,
        summary="Certificates of authorities to trust, as a PEM file; by default those of the system.",
    )
    client_file: str | None = declare(
        "schema.registry.ssl.keystore.location",
        default=None,
        aliases=("schema.registry.ssl.certificate.location",),
        path=True,
        summary="Certificate of the client with its key, as a PEM file.",
    )
    client_key: str | None = declare(
        "schema.registry.ssl.key.location",
        default=None,
        path=True,
        summary="Key of the client's certificate, as a PEM file, where it is in a file of its own.",
        advanced=True,
    )
    client_key_password: str | None = declare(
        "schema.registry.ssl.key.password",
        default=None,
        secret=True,
        summary="Password of that key.",
        advanced=True,
    )
    auto_register: bool = declare(
        "auto.register.schemas",
        default=True,
        summary="Register schemas that the registry does not have; otherwise that is an error.",
    )
    use_latest: bool = declare(
        "use.latest.version",
        default=False,
        summary="Write the id of the subject's latest version, without comparing it with the "
        "schema of the values: for schemas registered by hand.",
        advanced=True,
    )
    normalize: bool = declare(
        "normalize.schemas",
        default=False,
        summary="Have the registry compare schemas without regard to order.",
        advanced=True,
    )
    key_strategy: Strategy = declare(
        "key.subject.name.strategy",
        default="TopicNameStrategy",
        summary="Subject of keys: TOPIC-key, the record's name, or TOPIC-NAME.",
        advanced=True,
    )
    value_strategy: Strategy = declare(
        "value.subject.name.strategy",
        default="TopicNameStrategy",
        summary="Subject of values: TOPIC-value, the record's name, or TOPIC-NAME.",
        advanced=True,
    )
    timeout_ms: int = declare(
        "schema.registry.request.timeout.ms",
        default=10_000,
        ge=1,
        unit="ms",
        summary="How long one answer may take.",
        advanced=True,
    )
    patience_ms: int = declare(
        "schema.registry.retry.timeout.ms",
        default=30_000,
        ge=0,
        unit="ms",
        summary="How long a registry that is away is asked again before the pipeline reconnects.",
        advanced=True,
    )

    @field_validator("urls")
    @classmethod
    def _addresses(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(
                    "an address is http://HOST:PORT or https://HOST:PORT, with a path if any"
                )
        return urls

    def subject(self, side: str, topic: str, record: str | None) -> str:
        """Return the subject of a side's schemas.

        ``record`` is the record's full name.
        """
        strategy = self.key_strategy if side == "key" else self.value_strategy
        name = record or "null"
        match strategy.rpartition(".")[2]:
            case "RecordNameStrategy":
                return name
            case "TopicRecordNameStrategy":
                return f"{topic}-{name}"
            case _:
                return f"{topic}-{'key' if side == 'key' else 'value'}"
