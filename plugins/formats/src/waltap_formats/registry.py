"""Schemas in Confluent's schema registry: converters, the client, its errors.

Ids of schemas are cached without limit of time, since an id never changes. The first record of a
schema causes all requests, and later records cause none. Registering the same schema again returns
the same id, so a batch may be repeated after a failure.
"""

import abc
import ssl
import time
from base64 import b64encode
from contextlib import closing, suppress
from functools import cache, cached_property, partial
from typing import Any, ClassVar, Generic, TypeVar
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import orjson

from waltap.base.cache import BoundedDict
from waltap.base.network.http import HttpAnswer, HttpClient
from waltap.base.network.retry import RetryBackoff, waiting
from waltap.base.network.tls import tls_context
from waltap.changes.mapping.connect_schema import ConnectKind, Schema
from waltap.encoders.format.converter import Converter, ConverterContext, Encode
from waltap.errors import RetryVerdict, StopRequested, WaltapError
from waltap_formats.properties import RegistryProperties
from waltap_formats.schema_difference import difference

P = TypeVar("P", bound=RegistryProperties)
T = TypeVar("T", list[Any], dict[str, Any])


# No record of the batch was delivered.
RegistryUnavailable = WaltapError.define(
    "RegistryUnavailable", "WT-3311", retry=RetryVerdict.RECONNECT
)
RegistryLogin = WaltapError.define("RegistryLogin", "WT-3312", retry=RetryVerdict.NEVER)
SchemaIncompatible = WaltapError.define("SchemaIncompatible", "WT-3313", retry=RetryVerdict.NEVER)
SchemaNotRegistered = WaltapError.define("SchemaNotRegistered", "WT-3314", retry=RetryVerdict.NEVER)
SchemaInvalid = WaltapError.define("SchemaInvalid", "WT-3315", retry=RetryVerdict.NEVER)


# Cached ids, with the texts of their schemas.
MAX_IDS = 100_000
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0
# Codes of Confluent's registry: no such subject, version or schema.
MISSING = (40401, 40402, 40403)
_JSON = "application/vnd.schemaregistry.v1+json"


class RegistryClient:
    """Query one registry at one or several addresses. The first request connects."""

    def __init__(self, properties: RegistryProperties, context: ConverterContext) -> None:
        self._properties, self._stopping = properties, context.stopping
        self._waits_for = context.waits_for
        self._addresses = [_address(url, properties) for url in properties.urls]
        self._known = BoundedDict[tuple[str, str], int](MAX_IDS)

    @property
    def url(self) -> str:
        """Return the registry's first address, without login."""
        return self._addresses[0][0]

    def id_of(self, subject: str, schema: str, kind: str) -> int:
        """Return the id of ``schema`` under ``subject``.

        The schema is registered if that is allowed. ``kind`` is AVRO, JSON or PROTOBUF. Raises:
        RegistryUnavailable, RegistryLogin, SchemaIncompatible, SchemaNotRegistered, SchemaInvalid,
        StopRequested.
        """
        request = subject, schema
        number = self._known.get(request)
        if number is None:
            number = self._known[request] = self._asked(subject, schema, kind)
        return number

    # --- requests -------------------------------------------------------------------------------------

    def _asked(self, subject: str, schema: str, kind: str) -> int:
        options, path = self._properties, f"/subjects/{quote(subject, safe='')}"
        # Schemas are registered by hand, so the latest id counts without comparison.
        if options.use_latest:
            answer = self._ask("GET", f"{path}/versions/latest")
        else:
            normal = "?normalize=true" if options.normalize else ""
            versions = "/versions" if options.auto_register else ""
            answer = self._ask("POST", f"{path}{versions}{normal}", _body(schema, kind))
        content = _parsed(answer, dict)
        number = content.get("id")
        if answer.status == 200 and isinstance(number, int) and 0 <= number < 1 << 32:
            return number
        if answer.status in {401, 403}:
            what = f"the subject {subject}"
            raise RegistryLogin(
                f"the schema registry refuses the login for {what} ({answer.status})", what=what
            )
        if answer.status == 404 and content.get("error_code") in MISSING:
            raise SchemaNotRegistered(
                f"the schema of {subject} is not in the registry: {_message(answer)}",
                subject=subject,
            )
        if answer.status == 409:
            raise self._incompatible(subject, schema, kind, answer)
        raise SchemaInvalid(
            f"the schema registry does not take the schema of {subject}: {_message(answer)}",
            url=self.url,
        )

    def _incompatible(
        self, subject: str, schema: str, kind: str, answer: HttpAnswer
    ) -> WaltapError:
        version, changes = "latest", ""
        path = f"/subjects/{quote(subject, safe='')}/versions"
        # A transitive rule compares with every version, so an older one may be the reason.
        for number in reversed(_parsed(self._ask("GET", path), list)):
            judged = self._ask("POST", f"/compatibility{path}/{number}", _body(schema, kind))
            if _parsed(judged, dict).get("is_compatible") is False:
                version = str(number)
                break
        # Compare with that version, so that the error can name the change.
        older = self._ask("GET", f"{path}/{version}")
        if "schema" in (found := _parsed(older, dict)):
            version = str(found.get("version", version))
            changes = difference(str(found["schema"]), schema)
        text = f"the new schema of {subject} is not compatible with version {version}"
        if changes:
            text += f": {changes}"
        return SchemaIncompatible(
            f"{text} (the registry: {_message(answer)})", subject=subject, url=self.url
        )

    def _ask(self, method: str, path: str, body: bytes | None = None) -> HttpAnswer:
        """Send a request and return the answer.

        A registry that is away is asked again until the patience ends.
        """
        until = time.monotonic() + self._properties.patience_ms / 1000
        waits = RetryBackoff(
            waiting(self._stopping, until), first_s=FIRST_WAIT_S, ceiling_s=LONGEST_WAIT_S
        )
        while True:
            text, url = "", ""
            # Every address is tried before a wait.
            for url, headers in self._addresses:
                # No connection is kept open, since requests are rare.
                with (
                    self._waits_for(f"the schema registry {url}"),
                    closing(self._opened()) as client,
                ):
                    answer = client.send(method, f"{url}{path}", content=body, headers=headers)
                if not answer.again:
                    return answer
                text = answer.problem
                if answer.status:
                    text += f": {_message(answer)}"
            if self._stopping():
                raise StopRequested
            if time.monotonic() >= until:
                raise RegistryUnavailable(
                    f"the schema registry {url} does not answer: {text}", url=url
                )
            if not waits.wait():
                raise StopRequested

    def _opened(self) -> HttpClient:
        return HttpClient(
            timeout_s=self._properties.timeout_ms / 1000,
            stopping=self._stopping,
            verify=self._trust,
            follow_redirects=True,
        )

    @cached_property
    def _trust(self) -> ssl.SSLContext | bool:
        if not any(url.startswith("https:") for url, _ in self._addresses):
            # Without https no certificates are loaded.
            return False
        options, place = self._properties, "schema.registry.ssl."
        return tls_context(
            (f"{place}truststore.location", options.ca_file),
            (f"{place}keystore.location", options.client_file),
            (f"{place}key.location", options.client_key),
            options.client_key_password or "",
        )


def _address(url: str, properties: RegistryProperties) -> tuple[str, dict[str, str]]:
    """Return an address without login, and its request headers."""
    parts = urlsplit(url.rstrip("/"))
    # A login in the address must not appear in messages.
    login, _, host = parts.netloc.rpartition("@")
    headers = {"Accept": f"{_JSON}, application/json", "Content-Type": _JSON}
    user = properties.user_info or unquote(login)
    if properties.bearer_token:
        headers["Authorization"] = f"Bearer {properties.bearer_token}"
    elif user:
        headers["Authorization"] = f"Basic {b64encode(user.encode()).decode()}"
    return urlunsplit((parts.scheme, host, parts.path, "", "")), headers


def _body(schema: str, kind: str) -> bytes:
    # AVRO is the registry's default.
    return orjson.dumps(
        {"schema": schema} if kind == "AVRO" else {"schema": schema, "schemaType": kind}
    )


def _parsed(answer: HttpAnswer, kind: type[T]) -> T:
    """Return the content of an answer, an empty one if it is of another kind."""
    with suppress(orjson.JSONDecodeError):
        if isinstance(found := orjson.loads(answer.body), kind):
            return found
    return kind()


def _message(answer: HttpAnswer) -> str:
    """Return the registry's message in one line."""
    found = _parsed(answer, dict)
    text = found.get("message") or found.get("detail") or found or f"status {answer.status}"
    return " ".join(str(text).split())[:500]


class RegistryConverter(Converter, Generic[P]):
    """Write the wire form of Confluent's serialisers.

    It is a zero byte, the schema's id, and the value.
    """

    # The language of the schemas, by the registry's name.
    language: ClassVar[str]
    # Whether null of an optional schema has no bytes, as Confluent's serialiser has none.
    leaves_nulls: ClassVar[bool] = True

    def __init__(self, properties: P, context: ConverterContext) -> None:
        self._properties, self._context = properties, context

    @cached_property
    def _registry(self) -> RegistryClient:
        return RegistryClient(self._properties, self._context)

    @abc.abstractmethod
    def made(self, topic: str, schema: Schema) -> Encode:
        """Register ``schema`` and return the encoder of its values.

        Raises: as `RegistryClient`.
        """

    def encoder(self, topic: str, schema: Schema | None) -> Encode:
        schema = schema or Schema(kind=ConnectKind.STRING, optional=True)
        if not (self.leaves_nulls and schema.optional):
            return self.made(topic, schema)
        # For null alone nothing is registered: rows without null could not be a later version.
        made = cache(partial(self.made, topic, schema))
        return lambda value: None if value is None else made()(value)

    def _registered(self, topic: str, name: str | None, text: str) -> bytes:
        """Register a schema and return the prefix of its values.

        ``name`` is the record's. Raises: as `RegistryClient`.
        """
        subject = self._properties.subject(self._context.record_part, topic, name)
        number = self._registry.id_of(subject, text, self.language)
        return b"\x00" + number.to_bytes(4, "big")
