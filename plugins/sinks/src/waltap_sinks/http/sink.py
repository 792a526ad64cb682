"""Post records in key order until each is accepted."""

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from urllib.request import getproxies
from uuid import uuid4

from waltap.base.network.retry import RetryBackoff, waiting
from waltap.base.network.tls import tls_context
from waltap.base.plugin_errors import needing
from waltap.base.redaction import host_of
from waltap.changes.events.event import Record
from waltap.changes.transactions.position import Positions
from waltap.changes.transactions.transaction import Batch
from waltap.errors import RetryVerdict, SinkError, StopRequested
from waltap.ports.sink.refusal import RecordsRefused, RefusedEvent
from waltap.ports.sink.sink import Sink, SinkCapabilities, SinkContext
from waltap.ports.source.connector import PreflightCheck
from waltap_sinks.http.properties import HttpProperties
from waltap_sinks.http.requests import HttpRequest, packer, shards_of

if TYPE_CHECKING:
    from waltap.base.network.http import HttpClient, WebhookSignature


log = logging.getLogger(__name__)

HttpUnavailable = SinkError.define("HttpUnavailable", "WT-5601", retry=RetryVerdict.SAME_BATCH)


HttpRefused = SinkError.define("HttpRefused", "WT-5602")
HttpLoginRefused = SinkError.define("HttpLoginRefused", "WT-5603")


# Answers that call the content wrong.
OF_A_RECORD: Final = {400, 409, 413, 415, 422}
# A token is renewed so long before its end, so that none ends between the check and the arrival of
# a request, with clocks that differ a little.
EARLY_S = 30.0


class ClientCredentials:
    """Get tokens by OAuth 2.0 client credentials, shared by all threads."""

    def __init__(
        self,
        properties: HttpProperties,
        client: "HttpClient",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._properties, self._client, self._clock = properties, client, clock
        self._lock = threading.Lock()
        self._token, self._until = "", 0.0

    def token(self, *, other_than: str = "") -> str:
        """Return a valid token; ``other_than`` was refused.

        Raises: HttpLoginRefused, HttpUnavailable.
        """
        # One thread renews the token for all: servers limit the rate of token requests.
        with self._lock:
            if not self._token or self._token == other_than or self._clock() >= self._until:
                self._ask()
            return self._token

    def _ask(self) -> None:
        given = self._properties
        form = {"grant_type": "client_credentials"}
        if given.oauth_scope is not None:
            form["scope"] = given.oauth_scope
        url = given.oauth_url or ""
        location = urlsplit(url).hostname
        login = given.oauth_client or "", given.oauth_secret or ""
        answer = self._client.send("POST", url, data=form, auth=login)
        if answer.again:
            raise HttpUnavailable(f"no token from {location}: {answer.problem}", location=location)
        try:
            document = {} if answer.problem else json.loads(answer.body)
            self._token = str(document["access_token"])
            lifetime = document.get("expires_in")
            seconds = 3600.0 if lifetime is None else float(lifetime)  # some servers send null
        except (ValueError, KeyError, TypeError, AttributeError) as cause:
            raise HttpLoginRefused(
                f"no token from {location}: it answers {answer.status}", location=location
            ) from cause
        # A token that lives shorter than `EARLY_S` is used for a second, not requested for each
        # record.
        self._until = self._clock() + max(1.0, seconds - EARLY_S)


LONGEST_WAIT_S: Final = 30.0
# The part of a stop's time that is left for the last requests, the flush and the close.
SPARE_S: Final = 3.0
# A service that answers wrongly may do so several times a second.
REPORT_AGAIN_S: Final = 60.0
CONNECT_TIMEOUT_S: Final = 5.0
# Bytes of an answer that are read so that the connection can be reused. Its content is ignored.
LONGEST_ANSWER: Final = 1 << 16


class HttpSink(Sink):
    """Post each record at least once, in order by key.

    A batch is distributed among ``concurrency`` shards by key. `write` returns when every shard is
    empty, so `flush` has nothing to do. A batch that comes again after HttpUnavailable resumes
    behind its accepted records. A refused request of several records is halved until the refused
    record is found; the others are sent.
    """

    def __init__(self, properties: HttpProperties, context: SinkContext) -> None:
        self._properties, self._context = properties, context
        self.capabilities = SinkCapabilities(
            records=True,
            json_only=properties.body != "record",
            partitions=True,
            resumes_snapshots=True,
        )
        self._location = host_of(properties.url)
        self._pack = packer(properties)
        self._signature: WebhookSignature | None = None
        self._client: HttpClient | None = None
        self._credentials: ClientCredentials | None = None
        self._threads: ThreadPoolExecutor | None = None
        self._accepted = Positions()
        self._pending: tuple[Batch, list[_HttpShard]] | None = None
        self._report_at = 0.0

    def check(self) -> list[PreflightCheck]:
        """Check that a server listens at the address.

        No request is sent, since it might have an effect. A proxy shows nothing before the first
        request. Raises: LibraryMissing.
        """
        self._new_client().close()  # it reads certificates and keys, whose errors belong to the start
        parts = urlsplit(self._properties.url)
        if parts.hostname is None or parts.scheme in getproxies():
            return [PreflightCheck.ok("sink http", self._location)]
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            socket.create_connection((parts.hostname, port), timeout=CONNECT_TIMEOUT_S).close()
        except OSError as error:
            found = f"{self._location}: {error.strerror or error}"
            remedy = "Start what is to listen there; a run tries again until it does."
            return [PreflightCheck.warning("sink http", found, remedy)]
        return [PreflightCheck.ok("sink http", self._location)]

    def open(self) -> None:
        """Create the client; the first record opens a connection.

        Raises: LibraryMissing, SinkError.
        """
        self._client = self._new_client()
        if self._properties.oauth_url is not None:
            self._credentials = ClientCredentials(self._properties, self._client)
        if self._properties.concurrency > 1:
            self._threads = ThreadPoolExecutor(
                self._properties.concurrency, thread_name_prefix="waltap-http"
            )

    def write(self, batch: Batch) -> None:
        """Send the batch's records.

        Raises: HttpUnavailable, HttpRefused, HttpLoginRefused, RecordsRefused, StopRequested.
        """
        # The engine repeats the same object after HttpUnavailable: its accepted requests are gone.
        if self._pending is None or self._pending[0] is not batch:
            shared = shards_of(batch.records or (), self._properties.concurrency)
            self._pending = batch, [_HttpShard(self._pack(shard)) for shard in shared]
        given = self._pending[1]
        try:
            self._send([shard for shard in given if shard.head is not None])
        except HttpRefused as error:
            self._pending = None
            blamed = [shard.blamed for shard in given if shard.blamed is not None]
            if not (blamed and error.fields["status"] in OF_A_RECORD):
                raise
            index = [id(record) for record in batch.records or ()].index(id(blamed[0]))
            raise RecordsRefused([RefusedEvent(index=index, error=error)]) from error
        refused = {id(record): error for shard in given for record, error in shard.refused}
        if refused:  # The others are sent, so the rest of the batch only counts.
            self._pending = batch, []
            raise RecordsRefused(
                [
                    RefusedEvent(index=index, error=refused[id(record)])
                    for index, record in enumerate(batch.records or ())
                    if id(record) in refused
                ]
            )
        self._pending = None
        self._accepted = self._accepted.advanced(batch.partition, batch.position)

    def flush(self) -> Positions | None:
        return self._accepted or None

    def close(self) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            threads.shutdown()
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # --- requests -----------------------------------------------------------------------------------

    def _send(self, waiting: "list[_HttpShard]") -> None:
        """Empty the shards, each in its order.

        A failure is raised when all shards have ended.
        """
        if self._threads is None or len(waiting) == 1:
            for shard in waiting:
                self._empty(shard)
            return
        running = [self._threads.submit(self._empty, shard) for shard in waiting]
        failures = [failure for each in running if (failure := each.exception()) is not None]
        # A refusal needs the operator, so it goes before failures that may pass.
        for failure in failures:
            if not isinstance(failure, HttpUnavailable):
                raise failure
        if failures:
            raise failures[0]

    def _empty(self, shard: "_HttpShard") -> None:
        while (request := shard.head) is not None:
            # The rest of a batch may take longer than a stop.
            if self._context.time_left() < SPARE_S:
                raise StopRequested
            try:
                self._deliver(request, shard.identifier)
            except HttpRefused as error:
                several, status = len(request.held) > 1, error.fields["status"]
                # 413 is about the size of the request, so halves may pass even without tolerance.
                splits = several and (self._context.tolerant or status == 413)
                if status not in OF_A_RECORD or not (splits or self._context.tolerant):
                    shard.blamed = None if several else request.held[0]
                    raise
                if splits:  # find the refused record
                    middle = len(request.held) // 2
                    halves = request.held[:middle], request.held[middle:]
                    shard.instead(chain.from_iterable(map(self._pack, halves)))
                else:
                    shard.leave(error)
            else:
                shard.advance()

    def _deliver(self, request: HttpRequest, identifier: str) -> None:
        given = self._properties
        until = time.monotonic() + given.retry_total_ms / 1000
        waits = RetryBackoff(
            waiting(self._context.stopping, until),
            first_s=given.retry_ms / 1000,
            ceiling_s=LONGEST_WAIT_S,
        )
        refused = ""
        while True:
            # A standby may have taken over while this process waited or was paused.
            self._context.may_write()
            try:
                token = self._credentials.token(other_than=refused) if self._credentials else ""
                error, asked = self._post(request, identifier, token)
            except HttpUnavailable as unavailable:
                error, asked = unavailable, 0.0
            if error is None:
                return
            if isinstance(error, HttpLoginRefused) and token and token != refused:
                refused = token  # it may have been revoked early
                continue
            now = time.monotonic()
            if not isinstance(error, HttpUnavailable) or now >= until:
                raise error
            if now >= self._report_at:
                self._report_at = now + REPORT_AGAIN_S
                log.warning("%s; it is tried again for %d s", error.problem, until - now)
            if not waits.wait(asked):
                raise StopRequested

    def _post(
        self, request: HttpRequest, identifier: str, token: str
    ) -> tuple[SinkError | None, float]:
        """Try once; return the error and the requested wait."""
        assert self._client is not None, "open comes first"
        headers = dict(request.headers)
        if self._signature is not None:
            headers |= self._signature.headers(identifier, int(time.time()), request.body)
        if token:
            headers["Authorization"] = f"Bearer {token}"
        answer = self._client.send(
            "POST",
            self._properties.url,
            content=request.body,
            headers=headers,
            most_bytes=LONGEST_ANSWER,
        )
        if not answer.problem:
            return None, 0.0
        if answer.again:
            text = f"{self._location} takes no records: {answer.problem}"
            return HttpUnavailable(text, location=self._location), answer.wait_s
        status = answer.status
        kind = HttpLoginRefused if status in {401, 403, 407} else HttpRefused
        count = len(request.held)
        what = f"{count} records, the first" if count > 1 else "a record"
        text = f"{self._location} answers {status} to {what} of {request.held[0].topic}"
        return kind(text, location=self._location, status=status), 0.0

    def _new_client(self) -> "HttpClient":
        """Return a client with the profile's settings. Raises: LibraryMissing, SinkError."""
        with needing("the sink http needs httpx", extra="http"):
            import httpx

            from waltap.base.network.http import HttpClient, WebhookSignature
        given = self._properties
        if given.signing_secret is not None:
            self._signature = WebhookSignature(given.signing_secret)
        headers = {name.removeprefix("header."): value for name, value in given.headers.items()}
        if given.token is not None:
            headers["Authorization"] = f"Bearer {given.token}"
        return HttpClient(
            timeout_s=given.timeout_ms / 1000,
            stopping=self._context.stopping,
            headers=headers,
            auth=None if given.user is None else (given.user, given.password or ""),
            verify=tls_context(
                ("ssl.ca", given.ssl_ca),
                ("ssl.certificate", given.ssl_certificate),
                ("ssl.key", given.ssl_key),
                default=httpx.create_ssl_context,
            ),
            # One connection per shard, and one for a token that a shard requests meanwhile.
            limits=httpx.Limits(max_connections=given.concurrency + 1),
        )


class _HttpShard:
    """Send requests one after the other.

    The first request stays at the head with its identifier until it is accepted.
    """

    def __init__(self, requests: Iterator[HttpRequest]) -> None:
        self._requests = requests
        self.advance()
        self.refused: list[tuple[Record, SinkError]] = []
        self.blamed: Record | None = None

    def advance(self) -> None:
        # Retries of one request keep their id, by which receivers recognise them (Standard
        # Webhooks).
        self.head = next(self._requests, None)
        self.identifier = f"msg_{uuid4()}"

    def instead(self, requests: Iterator[HttpRequest]) -> None:
        """Replace the head by ``requests``."""
        self._requests = chain(requests, self._requests)
        self.advance()

    def leave(self, error: SinkError) -> None:
        """Skip the head, one refused record."""
        assert self.head is not None
        self.refused.append((self.head.held[0], error))
        self.advance()
