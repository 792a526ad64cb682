"""The contract of a converter: Connect values in, bytes out, for one side of records.

Keys, values and header values may each have a converter of their own; `waltap.format.converted` makes the
records that they write.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from waltap.decode.tuple_image import Tuple
from waltap.errors import RecordError, RetryVerdict
from waltap.events.shape import TableShape
from waltap.format.frame import EventFrame
from waltap.format.record import Header
from waltap.mapping.connect_schema import Schema

__all__ = [
    "Converter",
    "ConverterContext",
    "Encode",
    "Side",
    "ValueUnfit",
    "WriteCreates",
    "WriteKeys",
    "Written",
]

Side = Literal["key", "value", "header"]
Encode = Callable[[Any], bytes | None]


class ValueUnfit(RecordError):
    """A value cannot be written in the format: null in a required field, or a number out of range."""

    code = "WT-3301"
    retry = RetryVerdict.NEVER
    remedy = (
        "The batch was not delivered and the position not moved. A column mode that has a form for such "
        "values may help (decimal.handling.mode=string for NaN and infinity), or another {side}.converter."
    )


WriteKeys = Callable[[Sequence[Tuple]], list[bytes]]
"""Images → keys. Raises one of MISFITS for one that does not fit; then `Converter.encoder` writes them."""


Written = tuple[list[bytes] | None, list[bytes]]
"""Keys and values of rows; keys None: `Converter.keys` is to write them."""


class WriteCreates(Protocol):
    """Images → values with the operation ``op`` (c, u or r), with their keys where it writes those, too;
    ``lsns`` has an LSN for each, None where the source block has none. Raises as `WriteKeys`."""

    def __call__(
        self, images: Sequence[Tuple], lsns: Sequence[int | None], op: str, frame: EventFrame
    ) -> Written: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConverterContext:
    """What a converter may know: which side it writes, the pipeline's topic prefix, whom to warn,
    and whether a stop was asked for: a wait ends then, with `StopRequested`."""

    side: Side
    topic_prefix: str = ""
    warn: Callable[[str], None] = lambda _text: None
    stopping: Callable[[], bool] = lambda: False


class Converter(abc.ABC):
    """Writes the values of one side. Single-threaded. ``text``: what it writes is JSON text."""

    text: bool = False

    @abc.abstractmethod
    def encoder(self, topic: str, schema: Schema | None) -> Encode:
        """Return what writes values of ``schema`` for ``topic``; asked once for each of them.

        ``schema`` None: values have none (null is a tombstone, and is never handed over). The encoder
        raises ValueError, TypeError or KeyError for what is no value of the schema, and replaces null by
        the schema's default where the converter is set to. It may ask a registry, now or at its first
        value. Raises: WaltapError.
        """

    def keys(self, shape: TableShape, *, read: bool) -> "WriteKeys | None":
        """Return what writes keys of a relation version straight from its images, to the bytes of
        `encoder`; None where it is no quicker. ``read``: of rows that a snapshot reads."""
        return None

    def creates(
        self, shape: TableShape, value: Schema, key: "Converter", *, read: bool
    ) -> "WriteCreates | None":
        """Return what writes values that have only ``after`` straight from images, to the bytes of
        `encoder`; None where it is no quicker. ``value`` is the schema of values; ``key`` writes keys:
        whoever knows it may write them on the way, where records have keys."""
        return None

    def headed(
        self, topic: str, schema: Schema | None
    ) -> Callable[[Any], tuple[bytes | None, tuple[Header, ...]]] | None:
        """Return what writes values with headers that precede the record's own; None: `encoder` does."""
        return None
