"""Name the questions that a decoder may ask."""

from typing import Any, Final

import msgspec

from waltap.changes.decode.relation import DataType, Relation

__all__ = ["KINDS", "OPTIONAL", "key_of", "plain"]

# Question → type of its answer. ``due`` and ``of`` belong to `NameResolution`; the last three
# belong to `Catalogue`. Recordings contain these names, so they must not change.
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

# Fields of `DecoderContext` that may be None.
OPTIONAL: Final = ("captures", "describe", "relation_at", "standings", "gone")

# Answers to ``of`` may have any type, and only their equality matters, so ``repr`` is enough.
_encode = msgspec.msgpack.Encoder(enc_hook=repr, order="deterministic").encode


def key_of(question: object) -> bytes:
    """Return the encoded arguments, or an encoded answer."""
    return _encode(question)


def plain(argument: object) -> object:
    """Return an argument; a set or dictionary becomes a sorted list."""
    # The order of a set differs between processes, and keys are compared as bytes.
    return sorted(argument) if isinstance(argument, set | frozenset | dict) else argument
