"""Rows of the tables of errors: kind, texts, attributes, the way through pickle; the remedy of the system's own reason."""

import errno
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from tests.test_tidy import PACKAGES

from waltap.cli.reference.pages import error_classes
from waltap.errors import (
    RetryVerdict,
    SinkError,
    SourceError,
    SystemRefused,
    WaltapError,
    error_texts,
    system_advice,
)
from waltap.pipeline.delivery.fan_out import SinkPausedTooLong, SinkReturned
from waltap.services.slot_monitor import SlotGivenUp
from waltap_testing.suite import assert_own_codes


def test_a_row_is_caught_by_its_name_and_by_its_kind():
    said = r"^WT-5803 too much WAL\. Make lake work again and start: "
    for kind in (SinkPausedTooLong, SinkError, WaltapError):
        with pytest.raises(kind, match=said):
            raise SinkPausedTooLong("too much WAL", sink="lake")


def test_a_row_has_its_attributes_and_else_its_kinds():
    assert (SinkReturned.code, SinkReturned.retry) == ("WT-5802", RetryVerdict.RECONNECT)
    assert SinkReturned.__doc__ == "A paused sink answers again."
    assert (SlotGivenUp.retry, SlotGivenUp.loses) == (SourceError.retry, SourceError.loses)
    assert SlotGivenUp.__module__ == "waltap.services.slot_monitor"


def test_a_row_goes_through_pickle():
    again = pickle.loads(pickle.dumps(SinkPausedTooLong("too much", sink="lake")))  # noqa: S301 - ours
    assert type(again) is SinkPausedTooLong
    assert str(again).startswith("WT-5803 too much. Make lake work again")


def test_an_error_has_its_code_where_no_file_can_be_opened():
    program = (
        "import resource; from waltap.pipeline.delivery.fan_out import SinkReturned;"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0)); print(SinkReturned('too many files'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == (
        "WT-5802 too many files. The documentation of waltap has the remedy of WT-5802.\n"
    ), done.stderr


@pytest.mark.parametrize("package", ["tests", "keyword", "no_such_module"])
def test_an_error_of_a_plugin_without_its_row_has_its_code(package):
    """A plugin may be one module, which has no table."""
    odd = eval("define('Odd', 'MY-1')", {"__name__": package, "define": SinkError.define})  # noqa: S307
    assert str(odd("full")) == f"MY-1 full. The documentation of {package} has the remedy of MY-1."


@pytest.mark.parametrize(
    ("code", "said"),
    [("WT-5802", r"the code of .*SinkReturned"), ("WT-5001", "the code of"), ("MY-3", "no remedy")],
)
def test_the_kit_finds_a_plugins_error_without_its_own_code_or_remedy(code, said):
    odd, package = SinkError.define("Odd", code), f"acme{code[-1]}"
    odd.__module__ = package
    with pytest.raises(AssertionError, match=f"{package}.Odd has {said}"):
        assert_own_codes(package)
    del odd.code  # the class lives until it is collected, and later tests look at its code


@pytest.mark.parametrize("remedy", ["Look at {path}.", 'Set {} in {"a": 1}.', "See {0.x}", "{"])
def test_an_error_of_a_plugin_is_told_without_the_fields_of_its_remedy(remedy):
    """The text of an error must not raise: the user would see a bug of waltap."""
    odd = type("Odd", (SinkError,), {"code": "MY-002", "remedy": remedy})
    assert str(odd("full")) == f"MY-002 full. {remedy}"


def test_every_row_of_a_table_is_an_error():
    known = {(each.__module__.partition(".")[0], each.code) for each in error_classes(PACKAGES)}
    packages = {each.__module__.partition(".")[0] for each in error_classes(PACKAGES)}
    listed = set()
    for package in packages:
        try:
            rows = error_texts(package)
        except FileNotFoundError:
            continue  # a distribution of classes only
        listed |= {(package, code) for code in rows}
    assert len(listed) > 200
    assert listed <= known


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


def test_a_current_folder_that_is_gone_is_named(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    assert SystemRefused.of(FileNotFoundError(errno.ENOENT, "why")) is None
    gone.rmdir()
    with pytest.raises(FileNotFoundError) as error:
        Path.cwd()
    assert "current folder was deleted" in str(SystemRefused.of(error.value))


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
