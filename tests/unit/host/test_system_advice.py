"""The remedy that the operating system's own reason asks for."""

import errno

import pytest

from waltap.errors import SinkError, SystemRefused, system_advice


def raised(error: Exception, *causes: Exception) -> Exception:
    """Return ``error``, raised from the first of ``causes``, that from the second, …"""
    before = error
    for cause in causes:
        before.__cause__ = cause
        before = cause
    return error


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EMFILE, "ulimit -n"),
        (errno.ENFILE, "fs.file-max"),
        (errno.EROFS, "read-only"),
        (errno.EDQUOT, "quota"),
        (errno.ENAMETOOLONG, "shorter name"),
    ],
)
def test_the_systems_reason_wins_over_the_class(number, words):
    error = raised(SinkError("no"), ValueError(), OSError(number, "why", "place"))
    assert words in error.advice()
    refused = SystemRefused.of(OSError(number, "why", "place"))
    assert refused is not None
    assert "place: why" in str(refused)
    assert words in str(refused)


def test_what_an_error_class_knows_better_stays():
    error = raised(SinkError("no"), OSError(errno.ENOSPC, "full"))
    assert error.advice() == SinkError.remedy


def test_an_error_raised_from_itself_has_an_end():
    error = SinkError("no")
    error.__cause__ = error
    assert error.advice() == SinkError.remedy
    assert system_advice(error) is None


def test_a_mistake_of_the_code_is_no_refusal():
    assert SystemRefused.of(OSError(errno.EBADF, "bad")) is None
