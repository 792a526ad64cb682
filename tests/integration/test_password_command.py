"""What becomes of a command that gives the password: its output, its failures, and what is reported them."""

import os
import sys
import time
from pathlib import Path

import pytest

from waltap.base.redaction import HIDDEN
from waltap.errors import StopRequested
from waltap.ports.source.password import PasswordCommandFailed, printed_password

SECRET = "s3cret of-the-moment"


def printed(*words: str, timeout_s: float = 60.0, folder: Path | None = None) -> str:
    return printed_password(words, folder=folder, timeout_s=timeout_s, stopping=lambda: False)


def failure(*words: str, timeout_s: float = 60.0) -> str:
    with pytest.raises(PasswordCommandFailed) as caught:
        printed(*words, timeout_s=timeout_s)
    assert SECRET not in f"{caught.value} {caught.value!r}"
    assert "Run database.password.command by hand" in caught.value.advice()
    return caught.value.problem


@pytest.mark.parametrize(
    ("script", "password"),
    [
        pytest.param("echo secret", "secret", id="a line"),
        pytest.param("printf secret", "secret", id="no end of line"),
        pytest.param(r"printf 'secret\r\n'", "secret", id="a line of Windows"),
        pytest.param("printf ' a b  '", " a b  ", id="blanks belong to it"),
        pytest.param("echo s€cret; echo a warning >&2", "s€cret", id="standard error is no part"),
        pytest.param("sleep 600 & echo secret", "secret", id="something left running"),
        pytest.param("cat", "", id="no input"),
    ],
)
def test_what_it_prints_is_the_password(script: str, password: str) -> None:
    if not password:
        assert "printed none" in failure("sh", "-c", script)
    else:
        assert printed("sh", "-c", script) == password


def test_it_runs_in_the_folder_of_the_profile(tmp_path: Path) -> None:
    (tmp_path / "token.sh").write_text("#!/bin/sh\ncat token\n")
    (tmp_path / "token.sh").chmod(0o755)
    (tmp_path / "token").write_text("from the file\n")
    assert printed("./token.sh", folder=tmp_path) == "from the file"


@pytest.mark.parametrize(
    ("script", "reported"),
    [
        pytest.param("exit 3", "ended with status 3", id="status"),
        pytest.param("kill -TERM $$", "was ended by SIGTERM", id="signal"),
        pytest.param("echo no session >&2; exit 1", "status 1: no session", id="its last line"),
        pytest.param("true", "printed none", id="nothing"),
        pytest.param("echo; echo no ticket >&2", "printed none: no ticket", id="an empty line"),
        pytest.param(r"printf 'a\nb\n'", "several lines", id="several lines"),
        pytest.param(r"printf 'a\000b'", "several lines, or NUL", id="NUL"),
        pytest.param(r"printf '\377'", "not UTF-8", id="other bytes"),
        pytest.param("yes", "prints without end", id="without end"),
    ],
)
def test_a_failure_is_reported(script: str, reported: str) -> None:
    assert reported in failure("sh", "-c", script)


def test_what_is_not_there_or_no_program_is_reported(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("x")
    assert "does not start: No such file" in failure("no-such-program-of-ours")
    assert "does not start: Permission denied" in failure(str(tmp_path / "data"))


def test_what_it_says_of_a_failure_has_neither_its_output_nor_a_trace() -> None:
    said = failure("sh", "-c", f"echo {SECRET}; echo refused for '{SECRET}' >&2; exit 1")
    assert f"refused for {HIDDEN}" in said
    traced = failure("sh", "-xc", f"echo '{SECRET}' > /dev/null; exit 1")
    assert traced.endswith("ended with status 1")
    said = failure("sh", "-c", "echo 'at https://u:pw-of-u@host/x token=abcdefgh' >&2; exit 1")
    assert "pw-of-u" not in said
    assert "abcdefgh" not in said


def test_one_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
    pid = tmp_path / "pid"
    for seconds in (1.0, 10.0, 60.0):  # a busy machine may not have come to the second command
        assert f"gave none within {seconds:g} s" in failure("sh", "-c", script, timeout_s=seconds)
        if pid.exists() and pid.read_text().strip():
            break
    child = int(pid.read_text())
    deadline = time.monotonic() + 60
    while alive(child) and time.monotonic() < deadline:
        os.sched_yield()
    assert not alive(child)


def alive(pid: int) -> bool:
    """Return whether a process runs; one that has ended and that nobody asked for does not."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_stop_does_not_wait_for_it() -> None:
    with pytest.raises(StopRequested):
        printed_password(
            [sys.executable, "-c", "import time; time.sleep(600)"],
            folder=None,
            timeout_s=600.0,
            stopping=lambda: True,
        )
