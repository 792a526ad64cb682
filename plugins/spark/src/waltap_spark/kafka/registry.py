"""Schemas of Avro events, from a registry with Confluent's interface."""

import base64
import json
import urllib.request
from typing import Final
from urllib.error import HTTPError
from urllib.parse import urlsplit, urlunsplit

from waltap_spark.kafka.errors import EventUnread, TopicsUnreadable

__all__ = ["SchemaRegistry"]

_ANSWER_S: Final = 30
_NOT_FOUND: Final = 404


class SchemaRegistry:
    """Asks for each schema once. ``address`` may have user and password."""

    def __init__(self, address: str) -> None:
        self._address, self._known = address, dict[str, str]()

    def schema(self, schema_id: str) -> str:
        """Return a schema by its id. Raises: TopicsUnreadable; EventUnread where there is none."""
        found = self._known.get(schema_id)
        if found is None:
            found = self._known[schema_id] = self._asked(schema_id)
        return found

    def _asked(self, schema_id: str) -> str:
        place = urlsplit(self._address)
        bare = urlunsplit(place._replace(netloc=place.netloc.rpartition("@")[2])).rstrip("/")
        if place.scheme not in ("http", "https"):
            text = f"the registry of Avro schemas is not at {bare!r}: no http address"
            raise TopicsUnreadable(text)
        request = urllib.request.Request(f"{bare}/schemas/ids/{schema_id}")  # noqa: S310 - seen above
        if place.username:
            pair = f"{place.username}:{place.password or ''}".encode()
            request.add_header("Authorization", f"Basic {base64.b64encode(pair).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_S) as answer:  # noqa: S310
                return str(json.loads(answer.read())["schema"])
        except HTTPError as cause:
            if cause.code == _NOT_FOUND:
                raise EventUnread(f"{bare} has no schema {schema_id}") from cause
            raise TopicsUnreadable(f"schema {schema_id} at {bare}: {cause}") from cause
        except (OSError, ValueError, KeyError) as cause:
            raise TopicsUnreadable(f"schema {schema_id} at {bare}: {cause}") from cause
