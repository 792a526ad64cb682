"""Rows of the tables of errors: their kind, their attributes, and the way through pickle."""

import pickle

import pytest

from waltap.errors import RetryVerdict, SourceError, WaltapError

Torn = SourceError.define(
    "Torn",
    "WT-2998",
    "A row of this test.",
    "Mend {what}.",
    retry=RetryVerdict.RECONNECT,
    loses=True,
)
Plain = SourceError.define("Plain", "WT-2997", "Another row of this test.", "Do nothing at all.")


def test_a_row_is_caught_by_its_name_and_by_its_kind() -> None:
    for kind in (Torn, SourceError, WaltapError):
        with pytest.raises(kind, match=r"^WT-2998 it broke\. Mend the cable\.$"):
            raise Torn("it broke", what="the cable")


def test_a_row_has_its_attributes_and_else_its_kinds() -> None:
    assert (Torn.retry, Torn.loses, Torn.__doc__) == (
        RetryVerdict.RECONNECT,
        True,
        "A row of this test.",
    )
    assert (Plain.retry, Plain.loses) == (SourceError.retry, SourceError.loses)
    assert (Torn.__name__, Torn.__module__) == ("Torn", __name__)


def test_a_row_goes_through_pickle() -> None:
    again = pickle.loads(pickle.dumps(Torn("it broke", what="the cable")))  # noqa: S301 - ours
    assert type(again) is Torn
    assert str(again) == "WT-2998 it broke. Mend the cable."
