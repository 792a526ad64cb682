"""Who the sink ``http`` is: the Authorization of its requests."""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waltap.http import TRIES_AGAIN
from waltap_sinks.http.errors import HttpLoginRefused, HttpUnavailable
from waltap_sinks.http.properties import HttpProperties

if TYPE_CHECKING:
    import httpx

__all__ = ["ClientCredentials", "login_of"]

EARLY_S = 30.0
"""So long before its end a token is asked for anew."""


def login_of(properties: HttpProperties) -> Any:
    """Return what httpx takes as ``auth``: None without a login, or with `ClientCredentials`."""
    if properties.user is not None:
        return properties.user, properties.password or ""
    return None


class ClientCredentials:
    """Tokens by OAuth 2.0's client credentials, one for all threads."""

    def __init__(
        self,
        properties: HttpProperties,
        client: "httpx.Client",
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._properties, self._client, self._stopping = properties, client, stopping
        self._lock = threading.Lock()
        self._token, self._until = "", 0.0

    def token(self, *, other_than: str = "") -> str:
        """Return a token that is valid for a while; ``other_than`` was refused.

        Raises: HttpLoginRefused, HttpUnavailable.
        """
        with self._lock:
            if not self._token or self._token == other_than or time.monotonic() >= self._until:
                self._ask()
            return self._token

    def _ask(self) -> None:
        import httpx

        from waltap.http.exchange import exchange

        given = self._properties
        form = {"grant_type": "client_credentials"}
        if given.oauth_scope is not None:
            form["scope"] = given.oauth_scope
        place = httpx.URL(given.oauth_url or "").host
        try:
            with exchange(given.timeout_ms / 1000, self._stopping):
                answer = self._client.post(
                    given.oauth_url or "",
                    data=form,
                    auth=(given.oauth_client or "", given.oauth_secret or ""),
                )
        except httpx.HTTPError as cause:
            raise HttpUnavailable(
                f"no token from {place}: {type(cause).__name__}: {cause}", place=place
            ) from cause
        if answer.status_code in TRIES_AGAIN:
            raise HttpUnavailable(
                f"no token from {place}: it answers {answer.status_code}", place=place
            )
        try:
            document = answer.json() if answer.is_success else {}
            self._token = str(document["access_token"])
            told = document.get("expires_in")
            seconds = 3600.0 if told is None else float(told)  # some say null
        except (ValueError, KeyError, TypeError, AttributeError) as cause:
            raise HttpLoginRefused(
                f"no token from {place}: it answers {answer.status_code}", place=place
            ) from cause
        self._until = time.monotonic() + max(1.0, seconds - EARLY_S)
