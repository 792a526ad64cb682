"""Decoding of bytes in Confluent's wire form.

It is a zero byte, the schema's id, and the value.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic import ValidationError

from waltap.errors import COMMAND_LINE, ConfigurationError, PropertyProblem
from waltap.reading.stored_record import DecodedDocument
from waltap_formats.errors import RegistryAway, RegistryLogin, SchemaInvalid, SchemaUnread
from waltap_formats.registry.client import KnownSchema, RegistryClient
from waltap_formats.registry.properties import RegistryProperties
from waltap_formats.wire import WireUnreadable

__all__ = ["RegistryDecoder"]

HEAD: Final = 5
# A person waits, and reading can be repeated without loss.
PATIENCE: Final = {"schema.registry.retry.timeout.ms": "5000"}

Read = Callable[[bytes], Any]


class RegistryDecoder:
    """Decode values by the schemas of a registry.

    The registry is asked once per id. Damaged bytes never raise.
    """

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = {**PATIENCE, **settings}
        self._registry: RegistryClient | None = None
        # A text is the reason why an id has no reader.
        self._known: dict[int, tuple[str, Read] | str] = {}

    def decode(self, data: bytes) -> DecodedDocument | None:
        """Return the document in ``data``.

        Raises: SchemaUnread, ConfigurationError.
        """
        # Bytes in another form name no schema.
        if data[:1] != b"\x00" or len(data) < HEAD:
            return None
        number = int.from_bytes(data[1:HEAD], "big")
        if number not in self._known:
            self._known[number] = self._asked(number)
        known = self._known[number]
        if isinstance(known, str):
            return DecodedDocument(document=None, form="bytes", problem=known)
        form, read = known
        try:
            return DecodedDocument(document=read(data[HEAD:]), form=form)
        except (ValueError, RecursionError, OverflowError, ArithmeticError) as error:
            problem = f"does not fit schema {number}, {form}: {_brief(error)}"
            return DecodedDocument(document=None, form="bytes", problem=problem)

    def _asked(self, number: int) -> tuple[str, Read] | str:
        """Return form and reader, or the reason for none."""
        if self._registry is None:
            self._registry = RegistryClient(_properties(self._settings))
        url = self._registry.url
        try:
            found = self._registry.schema_of(number)
        except (RegistryAway, RegistryLogin, SchemaInvalid) as error:
            raise SchemaUnread(error.problem, url=url) from error
        if found is None:
            return f"the registry has no schema {number}"
        try:
            return _reader(found)
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            return f"schema {number} cannot be read: {_brief(error)}"


def _reader(schema: KnownSchema) -> tuple[str, Read]:
    """Return the form and the reader of a schema's values.

    Raises: ValueError and similar errors.
    """
    match schema.kind:
        case "AVRO":
            from waltap_formats.avro.reader import avro_reader

            named: dict[str, Any] = {}
            for text in schema.imported:
                each = json.loads(text)
                name = str(each["name"])
                space = each.get("namespace", "")
                named[name if "." in name or not space else f"{space}.{name}"] = each
            return "avro", avro_reader(json.loads(schema.text), named)
        case "PROTOBUF":
            from waltap_formats.protobuf.reader import protobuf_reader

            return "protobuf", protobuf_reader(schema.text, schema.imported)
        case "JSON":
            return "json-schema", json.loads
        case _:
            raise WireUnreadable(f"its kind is {schema.kind}")


def _brief(error: BaseException) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = " ".join(str(error).split())
    return text[:200] if isinstance(error, ValueError) else f"{type(error).__name__} {text[:200]}"


def _properties(settings: Mapping[str, str]) -> RegistryProperties:
    """Validate the settings of a registry.

    Raises: ConfigurationError.
    """
    try:
        return RegistryProperties.model_validate(settings)
    except ValidationError as error:
        problems = [
            PropertyProblem(
                str(each["loc"][0]) if each["loc"] else "--registry",
                "is no property of a registry"
                if each["type"] == "extra_forbidden"
                else str(each["msg"]).removeprefix("Value error, "),
            )
            for each in error.errors(include_input=False, include_url=False)
        ]
        # pydantic's error would show the values, which may be secrets.
        raise ConfigurationError(problems, origin=COMMAND_LINE) from None
