"""Get passwords from plugins, one for each connection."""

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from waltap.base.redaction import HIDDEN, Secret, redacted, without_frames
from waltap.errors import ConnectionLost, StopRequested

Password = Callable[[str, int, str, str], str | None]
"""(host, port, user, database) → the password of the next connection; None: the profile's.
Raises: WaltapError."""

PasswordUnavailable = ConnectionLost.define("PasswordUnavailable", "WT-2023")
PasswordFileUnreadable = ConnectionLost.define("PasswordFileUnreadable", "WT-2031")

# Limits the memory for a command that prints without end.
MAX_BYTES = 64 * 1024
QUOTED_MAX = 200
POLL_S = 0.1

PasswordCommandFailed = ConnectionLost.define("PasswordCommandFailed", "WT-2029")


def printed_password(
    words: Sequence[str],
    *,
    folder: Path | None,
    timeout_s: float,
    stopping: Callable[[], bool],
) -> str:
    """Run a command in ``folder`` and return its printed password.

    Raises: PasswordCommandFailed, StopRequested.
    """
    words = [Secret(word) for word in words]  # frames show them
    try:
        return Secret(_printed(words, Path(words[0]).name, folder, timeout_s, stopping))
    except PasswordCommandFailed as error:
        raise without_frames(error)  # noqa: B904 - the same error; its frames contain the output


def _printed(
    words: Sequence[str],
    name: str,
    folder: Path | None,
    timeout_s: float,
    stopping: Callable[[], bool],
) -> str:
    try:
        process = subprocess.Popen(
            words,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # its children end with it, and Ctrl-C does not reach it
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it cannot be run"
        raise PasswordCommandFailed(
            f"the password's command {name!r} does not start: {why}"
        ) from None
    with process:
        try:
            printed, error_output = _outputs(process, name, timeout_s, stopping)
        except BaseException:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    if process.returncode != 0:
        ended = f"{_ended(process.returncode)}{_ending_text(error_output, printed)}"
        raise PasswordCommandFailed(f"the password's command {name!r} {ended}")
    return _password(name, printed, error_output)


def _outputs(
    process: "subprocess.Popen[bytes]", name: str, timeout_s: float, stopping: Callable[[], bool]
) -> tuple[bytes, bytes]:
    """Return both outputs after the process has ended.

    Its child processes may still hold the pipes open.
    """
    deadline = time.monotonic() + timeout_s
    assert process.stdout is not None
    assert process.stderr is not None
    outputs: Mapping[int, bytearray] = {
        process.stdout.fileno(): bytearray(),
        process.stderr.fileno(): bytearray(),
    }
    with selectors.DefaultSelector() as selector:
        for fd in outputs:
            os.set_blocking(fd, False)
            selector.register(fd, selectors.EVENT_READ)
        ended = False
        while True:
            # A child may keep the pipe open after the command ended: read without waiting then.
            ready = selector.select(0 if ended else POLL_S) if selector.get_map() else []
            for key, _ in ready:
                data = os.read(key.fd, MAX_BYTES)
                outputs[key.fd] += data
                if not data:
                    selector.unregister(key.fd)
                if len(outputs[key.fd]) > MAX_BYTES:
                    raise PasswordCommandFailed(
                        f"the password's command {name!r} prints without end"
                    )
            if ended and not ready:
                break
            if not selector.get_map():
                with suppress(subprocess.TimeoutExpired):
                    # The command closed its outputs but still runs: do not spin.
                    process.wait(POLL_S)
            ended = process.poll() is not None
            if not ended and stopping():
                raise StopRequested
            if not ended and time.monotonic() >= deadline:
                raise PasswordCommandFailed(
                    f"the password's command {name!r} gave none within {timeout_s:g} s"
                )
    printed, error_output = outputs.values()
    return bytes(printed), bytes(error_output)


def _ended(status: int) -> str:
    if status < 0:
        with suppress(ValueError):
            return f"was ended by {signal.Signals(-status).name}"
    return f"ended with status {status}"


def _ending_text(error_output: bytes, printed: bytes) -> str:
    """Return the last line of ``error_output`` for an error, without secrets.

    Lines of a shell's trace are skipped: they may contain the secret.
    """
    secret = printed.decode("utf-8", "replace").strip()
    lines = [line.strip() for line in error_output.decode("utf-8", "replace").splitlines()]
    lines = [line for line in lines if line and not line.startswith("+")]
    if not lines:
        return ""
    line = lines[-1]
    for word in {secret, *secret.split()} if secret else ():
        line = line.replace(word, HIDDEN)
    return f": {redacted(line)[:QUOTED_MAX]}"


def _password(name: str, printed: bytes, error_output: bytes) -> str:
    try:
        text = printed.decode().rstrip("\r\n")
    except UnicodeDecodeError:
        problem = f"the password's command {name!r} printed what is not UTF-8"
        raise PasswordCommandFailed(problem) from None  # the cause contains the output
    if not text.strip():
        raise PasswordCommandFailed(
            f"the password's command {name!r} printed none{_ending_text(error_output, b'')}"
        )
    if "\0" in text or len(text.splitlines()) > 1:
        raise PasswordCommandFailed(
            f"the password's command {name!r} printed several lines, or NUL, where the password alone is "
            "meant"
        )
    return text
