"""What a column's flag says under a replica identity (`Column.in_identity`, of wire and catalogue)."""

import enum

from waltap.decode.relation import Relation

__all__ = ["IdentityEvidence", "has_word", "mark"]


class IdentityEvidence(enum.Enum):
    """What the flagged columns of a relation are."""

    KEY = "its primary key"
    INDEX = "the columns of a unique index"
    ROW = "all its columns"
    NOTHING = "none, whatever its key is"


_MARKS = {"i": IdentityEvidence.INDEX, "f": IdentityEvidence.ROW, "n": IdentityEvidence.NOTHING}


def mark(identity: str) -> IdentityEvidence:
    """Return what flags mean under an identity (`Relation.identity`): the key under DEFAULT, and under
    those that other servers have besides PostgreSQL's four."""
    return _MARKS.get(identity, IdentityEvidence.KEY)


def has_word(relation: Relation, word: str) -> bool:
    """Tell whether the identity of ``relation`` is the one that SQL calls ``word``."""
    return relation.identity == word[:1].lower()
