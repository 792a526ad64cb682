"""Kafka Connect's own converters, as judges of what waltap's formats write."""

import json
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.differential import judges
from tests.harness.servers.jars import jars

GOOGLE_TYPES = "com.google.api.grpc:proto-google-common-protos:2.22.1"
"""Older than this, which is what the peer brings, it has not all that Confluent's converter needs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A value for a converter. ``data`` is the JSON object with schema and payload that JsonConverter writes."""

    converter: str
    data: bytes
    topic: str
    key: bool = False
    config: Mapping[str, str] | None = None
    header: str | None = None
    """The name of the header whose value it is; the converter is one of headers then."""
    headers: Mapping[str, bytes] = field(default_factory=dict)
    """The record's headers, as ``data``."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a converter gave: its bytes and the schema it registered, or its error."""

    data: bytes | None
    schema: str | None
    error: str | None


def ask(questions: Iterable[Question], class_path: str = "") -> list[Answer]:
    """Return what the converters answer, in order. Raises: ChildProcessError."""
    lines = (
        f'{{"class":{json.dumps(each.converter)},"topic":{json.dumps(each.topic)},'
        f'"key":{json.dumps(each.key)},'
        f'"config":{json.dumps(dict(each.config or {}))},{_named(each)}"headers":[{_headers(each)}],'
        f'"data":{each.data.decode()}}}'
        for each in questions
    )
    return [_answer(json.loads(line)) for line in judges.asked("--converters", lines, class_path)]


def _named(question: Question) -> str:
    return "" if question.header is None else f'"header":{json.dumps(question.header)},'


def _headers(question: Question) -> str:
    return ",".join(
        f'{{"name":{json.dumps(name)},"data":{data.decode()}}}'
        for name, data in question.headers.items()
    )


def protobuf_class_path() -> str:
    """Return what must precede the peer's jars for Confluent's Protobuf converter. Raises: MissingProgram."""
    (found,) = jars("protobuf-types", [GOOGLE_TYPES]).glob("proto-google-common-protos-*.jar")
    return str(found)


def _answer(found: dict[str, Any]) -> Answer:
    data = found.get("bytes")
    return Answer(
        data=None if data is None else b64decode(data),
        schema=found.get("schema"),
        error=found.get("error"),
    )
