"""What a decoder may ask while it is fed, by the names that recordings have for it."""

from typing import Any, Final

import msgspec

from waltap.decode.relation import DataType, Relation

__all__ = ["KINDS", "OPTIONAL", "key_of", "plain"]

KINDS: Final[dict[str, Any]] = {
    "describe": Relation,
    "relation_at": Relation | None,
    "gone": tuple[frozenset[int], int],
    "captures": bool,
    "due": bool,
    "of": bytes,
    "relation": Relation | None,
    "data_type": DataType | None,
    "is_materialized_view": bool,
}
"""Question → type of its answer. ``due`` and ``of`` are those of `Standings`, the last three those of
`Catalogue`."""

OPTIONAL: Final = ("captures", "describe", "relation_at", "standings", "gone")
"""What a `DecoderContext` may be without."""

_encode = msgspec.msgpack.Encoder(enc_hook=repr, order="deterministic").encode


def key_of(question: object) -> bytes:
    """Return the text that stands for arguments, or for an answer of which only equality counts."""
    return _encode(question)


def plain(argument: object) -> object:
    """Return an argument in one form, whichever collection it came in."""
    return sorted(argument) if isinstance(argument, set | frozenset | dict) else argument
